"""Lenses, probes and measures for hidden states, by layer; the part `layers` uses them all."""
