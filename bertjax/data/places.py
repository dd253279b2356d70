"""Default paths for data on this machine. Exports contain these instead of the user's own paths."""

STORE = "~/.cache/bertjax/stores"
CACHE_DIR = "~/.cache/bertjax/remote"
