"""Foundations that import nothing else of bertjax: errors and exit codes, storage, locks, the platform, chips."""
