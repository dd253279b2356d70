"""The commands, one file each, over functions that notebooks and tests call. They run as `python -m bertjax NAME`."""
