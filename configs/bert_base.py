"""BERT-Base as published: Devlin et al. (2019), arXiv 1810.04805, appendix A.2.

Run on every host of a TPU slice of 16 chips, as in the paper (4 Cloud TPUs, 16 chips, 4 days):

    python -m bertjax.train --distributed --config=configs/bert_base.py --workdir=gs://BUCKET/bert_base \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/bert_base.py --topology=v5e:4x4

| setting | paper | where | here |
|---|---|---|---|
| layers, width, heads | 12, 768, 12 | section 3 | the same |
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
(**) Compiled for v5e:2x4, rows of 512 tokens take 10.5 of a chip's 15.75 GiB. It has not run on one.

Deviations:
- Adam corrects its bias. That code does not, and the 10,000 steps of warm-up hide the difference.
- The decay starts at the end of the warm-up and not at step 0.
- GELU is computed by erf, as in the first release of that code. Since February 2019 that code has the approximation by
  tanh, `--config.model.activation=gelu_tanh`.
- Every epoch draws new masks. That code instead makes ten duplicates of the corpus with other pairs and masks, as does
  `--config.tasks.bert.plans=10 --config.tasks.bert.objective.masking.static=10`.

| variant | what |
|---|---|
| `bert_base.py:laptop` | 3 layers of width 256, 128 tokens, on the embedded corpus or yours: minutes on a CPU |
| `bert_base.py:v5e-8` | the recipe on 8 chips: the paper's batch at once, no activation is computed twice (**) |
| `bert_base.py:smoke` | a very small model at both lengths on the embedded corpus in under a minute |
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
        "bert": {
            "objective": {"kind": "bert", "masking": {"kind": "tokens"}},
            "examples": {"kind": "segment_pairs"},
            "row_examples": 1,
        }
    }
    config.optimizer = {"learning_rate": 1e-4, "warmup_steps": 10_000}
    config.stages = [{"steps": 900_000, "seq_len": 128, "batch": 256}, {"steps": 100_000, "seq_len": 512, "batch": 256}]
    config.eval = {"every": 10_000}
    config.runtime = {"log_every": 100}
    if variant == "v5e-8":
        config.runtime["remat"] = "none"
    elif variant == "laptop":
        # Too short to memorize any text. Weights of 0.02 leave the attention of a narrow model uniform for long.
        config.model = {"preset": "tiny", "max_positions": 128, "dropout": 0.0, "attention_dropout": 0.0}
        config.model["init_stddev"] = 0.04
        config.data["corpus"], config.data["tokenizer"]["vocab_size"] = "embedded:en", 8000
        config.optimizer = {"learning_rate": 1e-3, "warmup_steps": 120}
        config.stages = [{"steps": 1200, "seq_len": 128, "batch": 16}]
        config.eval = {"every": 300, "rows": 512}
        config.runtime = {"save_every": 300}
    elif variant == "smoke":
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
        raise ValueError(f"unknown variant {variant!r}; choose smoke, laptop or v5e-8")
    return config
