"""The commands: one file each, a thin layer over functions that notebooks and tests call."""
