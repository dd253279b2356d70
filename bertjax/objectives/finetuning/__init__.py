"""Objectives that learn from labeled examples, one file each, and their metrics."""
