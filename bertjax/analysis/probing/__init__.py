"""What the layers of a model know: lenses, probes and measures of their states; the part `layers` uses all of them."""
