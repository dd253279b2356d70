"""Runs side by side: their settings, numbers and curves."""
