"""SpanBERT as published: Joshi et al. (2020), arXiv 1907.10529, sections 3 and 4.2.

Run on every host of a TPU slice of 64 chips (the paper used 32 V100 GPUs for 15 days):

    python -m bertjax.train --distributed --config=configs/spanbert.py --workdir=gs://BUCKET/spanbert \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/spanbert.py --topology=v5e:8x8

| setting | paper | where | here |
|---|---|---|---|
| model | BERT-Large | 4.2 | the same |
| masking | spans of whole words, geometric with p = 0.2 up to 10, 15% | 3.1 | the same |
| span boundary objective | two layers, position embeddings 200 wide | 3.2, 4.2 | the same, up to 15 positions (*) |
| sequences | single, up to 512 tokens, no next sentence | 3.3 | the same, of one document (*) |
| batch | 256 sequences of 512 tokens | 4.2 | the same |
| steps | 2,400,000 | 4.2 | the same |
| learning rate | 1e-4, warm-up over 10,000 steps, linear decay | 4.2 | the same |
| optimizer | AdamW, epsilon 1e-8, weight decay 0.1 | 4.2 | the same, clip norm 1 |
| dropout | 0.1 on all layers and attention, GELU | 4.2 | the same |
| masks | new in every epoch | 4.2 | the same |
| tokenizer | that of BERT, cased | 4.2 | WordPiece, 30,000, cased, trained on your corpus |

(*) From the authors' published code, facebookresearch/SpanBERT: the command has `--max-pair-targets 15`, and
`--break-mode doc` is its default. That command has a weight decay of 0.01, unlike the paper.

Deviations: weights start from a normal with a standard deviation of 0.02 that is cut at two deviations, as in BERT:
0.0176. That of the published code is not cut (`init_bert_params` of fairseq).

`spanbert.py:smoke` trains a very small model in the same way on the embedded corpus in under a minute.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "large", "dropout": 0.1, "attention_dropout": 0.1}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 30_000},
    }
    config.tasks = {
        "spanbert": {
            "objective": {"kind": "span_boundary", "masking": {"kind": "spans"}, "longest": 15},
            "examples": {"kind": "doc_sentences"},
            "row_examples": 1,
        }
    }
    config.optimizer = {"learning_rate": 1e-4, "warmup_steps": 10_000, "epsilon": 1e-8, "weight_decay": 0.1}
    config.stages = [{"steps": 2_400_000, "seq_len": 512, "batch": 256}]
    config.eval = {"every": 10_000}
    config.runtime = {"log_every": 100}
    if variant == "smoke":
        config.model["preset"] = "google_tiny"
        config.data = {"corpus": "embedded:en", "tokenizer": {"kind": "wordpiece", "vocab_size": 2000}}
        config.optimizer.update({"learning_rate": 1e-3, "warmup_steps": 10})
        config.stages = [{"steps": 50, "seq_len": 32, "batch": 32}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke")
    return config
