"""The arms of `benchmarks.train_step`: each module is one process that trains the same model on the same batch."""
