"""Machines: chips and their peak FLOP/s, platform settings, and a check for devices that compute wrong results."""
