"""The workdir of a run: its record, checkpoints, journals, metrics, locks, and what its time was spent on."""
