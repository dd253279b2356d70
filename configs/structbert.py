"""StructBERT: Wang et al. (2020), arXiv 1908.04577.

Run on every host of a TPU slice of 16 chips:

    python -m bertjax.train --distributed --config=configs/structbert.py --workdir=gs://BUCKET/structbert \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/structbert.py --topology=v5e:4x4

| setting | paper | where | here |
|---|---|---|---|
| layers, width, heads | 12, 768, 12 | 2.4 | the same |
| masked language modeling | as BERT | 2.3.1, 2.4 | the same |
| word structural objective | 5% of the runs of three tokens are shuffled | 2.3.1, 2.4 | the same |
| sentence structural objective | next, previous and random, a third each | 2.3.2 | the same |
| sequence length | 512 | 2.4 | the same |
| length of training | 40 epochs | 2.4 | 1,000,000 steps of 256 rows, about 40 epochs of the corpus (*) |
| optimizer | Adam, 1e-4, betas 0.9 and 0.999, weight decay 0.01 | 2.4 | the same, epsilon 1e-6, clip norm 1 |
| learning rate | warm-up over a tenth of the steps, linear decay | 2.4 | the same |
| dropout | 0.1 on all layers | 2.4 | the same, 0.1 on attention too |
| corpus | BookCorpus and English Wikipedia | 2.4 | `data.corpus`; default: Wikipedia only |

(*) BERT's appendix A.2 counts 40 epochs of the same corpus for these steps and rows. The paper does not give the batch.

Deviations:
- GELU is computed by erf, as in the first release of BERT's code. Since February 2019 that code has the approximation
  by tanh, `--config.model.activation=gelu_tanh`.

`structbert.py:smoke` trains a very small model in the same way on the embedded corpus in under a minute.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "base", "dropout": 0.1, "attention_dropout": 0.1}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 30_000, "lowercase": True},
    }
    config.tasks = {
        "structbert": {
            "objective": {"kind": "structbert"},
            "examples": {"kind": "sentence_structure"},
            "row_examples": 1,
        }
    }
    config.optimizer = {"learning_rate": 1e-4, "warmup_share": 0.1}
    config.stages = [{"steps": 1_000_000, "seq_len": 512, "batch": 256}]
    config.eval = {"every": 10_000}
    config.runtime = {"log_every": 100}
    if variant == "smoke":
        config.model["preset"] = "google_tiny"
        config.data = {
            "corpus": "embedded:en",
            "tokenizer": {"kind": "wordpiece", "vocab_size": 2000, "lowercase": True},
        }
        config.optimizer["learning_rate"] = 1e-3
        config.stages = [{"steps": 50, "seq_len": 32, "batch": 32}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke")
    return config
