"""RoBERTa-base as published: Liu et al. (2019), arXiv 1907.11692, table 9.

Run on every host of a TPU slice of 256 chips (the paper used up to 1,024 V100 GPUs):

    python -m bertjax.train --distributed --config=configs/roberta_base.py --workdir=gs://BUCKET/roberta_base \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/roberta_base.py --topology=v5e:16x16

| setting | paper | where | here |
|---|---|---|---|
| layers, width, heads | 12, 768, 12 | table 9 | the same |
| positions, segments | from row 2 of the position table, none (*) | | the same |
| batch | 8k sequences | table 9 | 8,192 rows |
| steps | 500,000 | table 9 | 500,000 |
| sequence length | 512 from the first step on | 3.1 | the same |
| optimizer | Adam, 6e-4, betas 0.9 and 0.98, epsilon 1e-6, weight decay 0.01, no clipping | table 9 | the same |
| learning rate | warm-up over 24,000 steps, linear decay | table 9 | the same |
| dropout, attention dropout | 0.1, 0.1 | table 9 | the same |
| examples | full sentences across documents, no next-sentence loss | 4.2 | the same, cut at the end of a row |
| masking | dynamic, 15% | 4.1 | the same |
| tokenizer | byte-level BPE, 50,000 | 4.4 | trained on your corpus |
| corpus | five corpora, 160 GB | 3.2 | `data.corpus`; default: Wikipedia only |

(*) From the authors' published code.

`roberta_base.py:large` is RoBERTa-large: 24 layers, width 1024, 16 heads, a peak of 4e-4 after 30,000 steps (table 9).

Deviations:
- Rows are cut between tokens, so that no row is padded. `--config.tasks.mlm.examples.cut=sentences` keeps sentences
  whole.
- Weights start from a normal with a standard deviation of 0.02 that is cut at two deviations, as in BERT: 0.0176. That
  of fairseq is not cut (`init_bert_params`).

`roberta_base.py:smoke` trains a very small model in the same way on the embedded corpus in under a minute.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "roberta_base", "dropout": 0.1, "attention_dropout": 0.1}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "byte_bpe", "vocab_size": 50_000},
    }
    config.tasks = {
        "mlm": {
            "objective": {"kind": "mlm", "masking": {"kind": "tokens"}},
            "examples": {"kind": "full_sentences"},
            "row_examples": 1,
        }
    }
    config.optimizer = {"learning_rate": 6e-4, "warmup_steps": 24_000, "b2": 0.98, "clip_norm": 0.0}
    config.stages = [{"steps": 500_000, "seq_len": 512, "batch": 8192}]
    config.eval = {"every": 5000}
    config.runtime = {"micro_tokens": 4096, "log_every": 100}
    if variant == "large":
        config.model["preset"] = "roberta_large"
        config.optimizer.update({"learning_rate": 4e-4, "warmup_steps": 30_000})
        config.runtime["micro_tokens"] = 2048
    elif variant == "smoke":
        config.model.update({"layers": 2, "width": 128, "heads": 2, "feedforward": 512})
        config.data = {"corpus": "embedded:en", "tokenizer": {"kind": "byte_bpe", "vocab_size": 2000}}
        config.optimizer.update({"learning_rate": 1e-3, "warmup_steps": 10})
        config.stages = [{"steps": 50, "seq_len": 64, "batch": 32}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"micro_tokens": 1024, "save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke or large")
    return config
