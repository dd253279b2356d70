"""Using a trained model: records go in, each one's answer comes out, in the same order.

    records --encode--> examples --buckets--> batches --outputs--> arrays --predictions--> one dict a record

What a model is used for is one frozen dataclass each (`base.Use`): to fill masks, to embed, to score sentences.
"""
