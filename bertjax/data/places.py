"""Where a machine keeps data by default. An export has these paths in place of a user's own."""

STORE = "~/.cache/bertjax/stores"
CACHE_DIR = "~/.cache/bertjax/remote"
