"""BERT-Large as published: Devlin et al. (2019), arXiv 1810.04805, appendix A.2.

Run on every host of a TPU slice of 16 chips, or of 64 as in the paper (16 Cloud TPUs, 64 chips, 4 days):

    python -m bertjax.train --distributed --config=configs/bert_large.py --workdir=gs://BUCKET/bert_large \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/bert_large.py --topology=v5e:4x4
    python -m bertjax compile --config=configs/bert_large.py --topology=v5e:8x8

| setting | paper | where | here |
|---|---|---|---|
| layers, width, heads | 24, 1024, 16 | section 3 | the same |
| batch | 256 sequences | A.2 | 256 rows of one example each |
| steps | 1,000,000 | A.2 | 1,000,000 |
| sequence length | 128 for 90% of the steps, then 512 | A.2 | the same, two stages |
| optimizer | Adam, 1e-4, betas 0.9 and 0.999, weight decay 0.01 | A.2 | the same, epsilon 1e-6, clip norm 1 (*) |
| learning rate | warm-up over 10,000 steps, linear decay | A.2 | the same |
| dropout, activation | 0.1 on all layers, GELU | A.2 | the same, 0.1 on attention too (*) |
| masking | 15%: 80% [MASK], 10% random, 10% kept | 3.1 | the same |
| next sentence | 50% are random | 3.1 | the same; a tenth of the pairs are shorter (*) |
| tokenizer | WordPiece, 30,000 | section 3 | trained on your corpus, lower case |
| corpus | BooksCorpus and English Wikipedia, 3.3 billion words | 3.1 | `data.corpus`; default: Wikipedia only |

(*) From the authors' published code, google-research/bert.

Deviations:
- Adam corrects its bias. That code does not, and the 10,000 steps of warm-up hide the difference.
- The decay starts at the end of the warm-up and not at step 0.
- GELU is computed by erf, as in the first release of that code. Since February 2019 that code has the approximation by
  tanh, `--config.model.activation=gelu_tanh`.
- Every epoch draws new masks. That code instead makes ten duplicates of the corpus with other pairs and masks, as does
  `--config.tasks.bert.plans=10 --config.tasks.bert.objective.masking.static=10`.

Rows of 512 tokens need more memory than rows of 128. A chip computes at most `runtime.micro_tokens` at once. In the
second stage it sums the gradients of four such parts on 16 chips, and of one on 64. The result is the same.

`bert_large.py:smoke` trains a very small model at both lengths on the embedded corpus in under a minute.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "large", "dropout": 0.1, "attention_dropout": 0.1}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 30_000, "lowercase": True},
    }
    config.tasks = {
        "bert": {
            "objective": {"kind": "bert", "masking": {"kind": "tokens"}},
            "examples": {"kind": "segment_pairs"},
            "row_examples": 1,
        }
    }
    config.optimizer = {"learning_rate": 1e-4, "warmup_steps": 10_000}
    config.stages = [{"steps": 900_000, "seq_len": 128, "batch": 256}, {"steps": 100_000, "seq_len": 512, "batch": 256}]
    config.eval = {"every": 10_000}
    config.runtime = {"micro_tokens": 2048, "log_every": 100}
    if variant == "smoke":
        config.model["preset"] = "google_tiny"
        config.data = {
            "corpus": "embedded:en",
            "tokenizer": {"kind": "wordpiece", "vocab_size": 2000, "lowercase": True},
        }
        config.optimizer = {"learning_rate": 1e-3, "warmup_steps": 10}
        config.stages = [{"steps": 40, "seq_len": 32, "batch": 32}, {"steps": 10, "seq_len": 64, "batch": 32}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"micro_tokens": 1024, "save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke")
    return config
