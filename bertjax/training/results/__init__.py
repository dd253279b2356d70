"""Results: summaries, curves, statistics over seeds, the GLUE table."""
