"""Results of finished runs: summaries, curves, spread over seeds, the GLUE table."""
