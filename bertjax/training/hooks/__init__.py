"""What a run does between its steps: each hook is one duty, and `default_hooks` lists those of every run."""
