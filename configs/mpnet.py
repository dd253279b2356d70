"""MPNet-base as published: Song et al. (2020), arXiv 2004.09297, section 3.1.

Run on every host of a TPU slice of 256 chips (the paper used 32 V100 GPUs for 35 days):

    python -m bertjax.train --distributed --config=configs/mpnet.py --workdir=gs://BUCKET/mpnet \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/mpnet.py --topology=v5e:16x16

| setting | paper | where | here |
|---|---|---|---|
| layers, width, heads | 12, 768, 12 | 3.1 | the same |
| positions | from row 2 of a table (*), and biases of distances: 32 buckets, up to 128 | 3.1 | the same |
| objective | predicted tokens in a random order, positions of all tokens seen | 2.2 to 2.4 | the same |
| predicted | 15%, whole words | 3.1 | the same |
| symbols in their place | 80% [MASK], 10% random, 10% unchanged | 3.1 | the same |
| batch | 8,192 rows of up to 512 tokens | 3.1 | the same |
| steps | 500,000 | 3.1 | the same |
| optimizer | Adam, betas 0.9 and 0.98, epsilon 1e-6, weight decay 0.01 | 3.1 | the same, no clipping (*) |
| learning rate | 5e-4, warm-up over 8% of the steps, linear decay (*) | | the same |
| dropout, attention dropout | 0.1, 0.1 (*) | | the same |
| tokenizer | that of BERT, 30,522, lower case | 3.1 | WordPiece of this size, trained on your corpus |
| corpus | five corpora, 160 GB | 3.1 | `data.corpus`; default: Wikipedia only |

(*) From the authors' published code, microsoft/MPNet: README.md and
pretraining/fairseq/models/masked_permutation_net.py. The learning rate is that of its example, which trains 125,000
steps.

Deviations:
- That code also permutes, and sometimes predicts, the first and the last symbol of a row. Here they are not predicted.
- That code draws dropout of a query's embedding separately. Here a query starts as the embedding in its place, after
  dropout.
- Biases of distances have no weight decay, as all biases. That code decays every parameter.
- Rows are cut between tokens, so that no row is padded. `--config.tasks.mpnet.examples.cut=sentences` keeps sentences
  whole.
- Weights start from a normal with a standard deviation of 0.02 that is cut at two deviations, as in BERT: 0.0176. That
  of fairseq is not cut.

`mpnet.py:mlm` is the same without the order: masked language modeling. `mpnet.py:smoke` trains a very small model in
the same way on the embedded corpus in under a minute.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "mpnet_base", "dropout": 0.1, "attention_dropout": 0.1}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 30_522, "lowercase": True},
    }
    config.tasks = {
        "mpnet": {
            "objective": {"kind": "permuted_mlm", "masking": {"kind": "words"}},
            "examples": {"kind": "full_sentences"},
            "row_examples": 1,
        }
    }
    config.optimizer = {"learning_rate": 5e-4, "warmup_steps": 40_000, "b2": 0.98, "clip_norm": 0.0}
    config.stages = [{"steps": 500_000, "seq_len": 512, "batch": 8192}]
    config.eval = {"every": 5000}
    config.runtime = {"micro_tokens": 4096, "log_every": 100}
    if variant == "mlm":
        config.tasks.mpnet.objective.kind = "mlm"
    elif variant == "smoke":
        config.model.update({"layers": 2, "width": 128, "heads": 2, "feedforward": 512})
        config.data = {
            "corpus": "embedded:en",
            "tokenizer": {"kind": "wordpiece", "vocab_size": 2000, "lowercase": True},
        }
        config.optimizer.update({"learning_rate": 1e-3, "warmup_steps": 10})
        config.stages = [{"steps": 50, "seq_len": 64, "batch": 32}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"micro_tokens": 1024, "save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose mlm or smoke")
    return config
