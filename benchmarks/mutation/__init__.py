"""Bugs that are put in on purpose, to measure how many the tests find."""
