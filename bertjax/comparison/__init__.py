"""Compare runs: settings, numbers and curves."""
