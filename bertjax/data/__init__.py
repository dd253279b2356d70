"""From a corpus to the batches of a step: sources, tokenizers, token store, plans, masking, pipeline. No JAX here."""
