"""Hooks: logging, evaluation, saving and other work between steps."""
