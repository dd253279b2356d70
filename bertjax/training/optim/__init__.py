"""Optimizers and their settings, parameters that are frozen, and optimizers from outside."""
