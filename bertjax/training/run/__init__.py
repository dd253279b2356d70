"""The workdir of a run: its record, checkpoints, journals, metrics, locks, and the accounts of its time."""
