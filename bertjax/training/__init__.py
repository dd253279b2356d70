"""Training: the step, its data, and the loop around it.

Start with `step` (one step), `setup` (what a run computes with) and `loop`. `parallel` places arrays on devices, `run`
reads and writes the workdir, and `results` summarizes finished runs.
"""
