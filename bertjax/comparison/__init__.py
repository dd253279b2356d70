"""The comparison of runs: their settings, numbers and curves."""
