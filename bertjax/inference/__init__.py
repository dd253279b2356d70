"""Inference: one prediction per record, in order.

    records --encode--> examples --buckets--> batches --outputs--> arrays --predictions--> one dict per record

A pipeline (`base.Pipeline`) is one way to use a model: fill masks, embed texts, score sentences, or predict what a
model was fine-tuned for. Each pipeline is a frozen dataclass.
"""
