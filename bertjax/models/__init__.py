"""Encoders and heads: the only place with Flax modules. Knows nothing of data, objectives or training."""
