"""BERT's left-to-right baseline, "LTR & No NSP": Devlin et al. (2019), section 5.1 and table 5, arXiv 1810.04805.

The same data and steps as BERT-Base, but every token is predicted from the tokens before it, as in GPT. Fine-tuning
keeps the direction, as in the paper.

Run on every host of a TPU slice of 16 chips:

    python -m bertjax.train --distributed --config=configs/causal.py --workdir=gs://BUCKET/causal \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/causal.py --topology=v5e:4x4

| setting | paper | where | here |
|---|---|---|---|
| model, optimizer, batch, steps | those of BERT-Base | 5.1 | those of `configs/bert_base.py` |
| attention | left context only | 5.1 | `model.direction="left_to_right"` |
| objective | the next token; no next sentence | 5.1 | the same |
| input | exactly as in pretraining of BERT | 5.1 | full sentences, because there are no pairs to tell apart |
| summary for classifiers | not stated | | the last token, because [CLS] sees only itself |

The logits of all positions are in memory at once: rows x tokens x vocabulary x 4 bytes. `runtime.micro_tokens` bounds
them: 4,096 tokens at 30,000 pieces are 0.5 GB.

`causal.py:smoke` trains a very small model at both lengths on the embedded corpus in under a minute.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "base", "direction": "left_to_right", "dropout": 0.1, "attention_dropout": 0.1}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 30_000, "lowercase": True},
    }
    config.tasks = {
        "causal": {"objective": {"kind": "causal"}, "examples": {"kind": "full_sentences"}, "row_examples": 1}
    }
    config.optimizer = {"learning_rate": 1e-4, "warmup_steps": 10_000}
    config.stages = [{"steps": 900_000, "seq_len": 128, "batch": 256}, {"steps": 100_000, "seq_len": 512, "batch": 256}]
    config.eval = {"every": 10_000}
    config.runtime = {"micro_tokens": 4096, "log_every": 100}
    if variant == "smoke":
        config.model["preset"] = "google_tiny"
        config.data = {
            "corpus": "embedded:en",
            "tokenizer": {"kind": "wordpiece", "vocab_size": 2000, "lowercase": True},
        }
        config.optimizer = {"learning_rate": 1e-3, "warmup_steps": 10}
        config.stages = [{"steps": 40, "seq_len": 32, "batch": 32}, {"steps": 10, "seq_len": 64, "batch": 32}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke")
    return config
