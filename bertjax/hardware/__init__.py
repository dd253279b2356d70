"""Facts about machines: chips and their peak FLOP/s, settings of the platform, and a check for wrong results."""
