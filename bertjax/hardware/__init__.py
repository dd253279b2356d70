"""Facts about machines: chips and their peak FLOP/s, FLOPs of a training step, settings of the platform."""
