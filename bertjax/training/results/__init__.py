"""The results of finished runs: summaries, curves, the spread over seeds, the GLUE table."""
