"""What a run shows when it is done: summaries, curves, spread over seeds, the GLUE table."""
