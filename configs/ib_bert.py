"""The teacher of MobileBERT: BERT-Large with inverted bottlenecks (Sun et al., 2020, arXiv 2004.02984).

Run on every host of a TPU slice of 256 chips:

    python -m bertjax.train --distributed --config=configs/ib_bert.py --workdir=gs://BUCKET/ib_bert \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/ib_bert.py --topology=v5e:16x16

| setting | paper or code | where | here |
|---|---|---|---|
| layers, heads | 24, 4 | table 1 | the same |
| states between layers | 512 wide | table 1 | the same |
| attention, feed-forward | 1,024 and 4,096 wide | table 1 | the same |
| embeddings | 128 wide, trigrams | section 3.4 | the same |
| activation, norm | GELU in its tanh approximation, layer norm | (*) | GELU by erf, layer norm |
| dropout | 0.1, 0.1 on attention | (*) | the same |
| tokenizer | WordPiece, 30,522, lower case | (*) | the same, trained on your corpus |
| optimizer, batch, rate, steps | | | those of the student, see `mobilebert.py` |

(*) From the authors' published code, google-research/mobilebert.

Deviations: text is cut into full sentences, and there is no next-sentence term. `--config.model.activation=gelu_tanh`
has the published approximation. The published code has no recipe for the teacher.

`ib_bert.py:smoke` trains a very small model in the same way on the embedded corpus in under a minute.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "ib_bert_large", "dropout": 0.1, "attention_dropout": 0.1}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 30_522, "lowercase": True},
    }
    config.tasks = {"mlm": {"objective": {"kind": "mlm"}, "examples": {"kind": "full_sentences"}, "row_examples": 1}}
    config.optimizer = {"kind": "lamb", "learning_rate": 1.5e-3, "warmup_steps": 10_000}
    config.stages = [{"steps": 500_000, "seq_len": 512, "batch": 2048}]
    config.eval = {"every": 10_000}
    config.runtime = {"log_every": 100}
    if variant == "smoke":
        config.model.update({"layers": 2, "width": 64, "heads": 2, "feedforward": 256})
        config.model.embeddings = {"kind": "mobilebert", "width": 32}
        config.model.block = {"kind": "mobilebert", "inner_width": 128}
        config.data = {
            "corpus": "embedded:en",
            "tokenizer": {"kind": "wordpiece", "vocab_size": 2000, "lowercase": True},
        }
        config.optimizer.update({"learning_rate": 2e-2, "warmup_steps": 10})
        config.stages = [{"steps": 50, "seq_len": 32, "batch": 32}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke")
    return config
