"""Optimizers: Adam and LAMB, and rules for parameters selected by path."""
