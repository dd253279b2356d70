"""Use of a trained model: records go in, one prediction for each comes out, in the same order.

    records --encode--> examples --buckets--> batches --outputs--> arrays --predictions--> one dict per record

A pipeline is one way to use a model (`base.Pipeline`), one frozen dataclass each: to fill masks, to embed, to score
sentences, or to predict what a fine-tuned model was trained for.
"""
