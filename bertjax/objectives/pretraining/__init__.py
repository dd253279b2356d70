"""Objectives that learn from text without labels, one file for each idea."""
