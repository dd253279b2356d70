"""The model: encoder, heads and taps. The only package with Flax modules; it imports neither data nor training."""
