"""Configurations of runs: typed settings and their checks, files and flags, exports and saved models."""
