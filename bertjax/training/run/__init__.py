"""A run's workdir: record, checkpoints, logs, metrics, locks, time accounting."""
