"""ALBERT-base as published: Lan et al. (2020), arXiv 1909.11942, section 4.1; the other sizes are variants.

Run on every host of a TPU slice of 256 chips (the paper used 64 to 512 chips of TPU v3):

    python -m bertjax.train --distributed --config=configs/albert_base.py --workdir=gs://BUCKET/albert_base \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/albert_base.py --topology=v5e:16x16

| setting | paper | where | here |
|---|---|---|---|
| layers, width, heads, feed-forward | 12, 768, 12, 3072 | 3.1, table 1 | the same |
| embeddings | 128 wide, projected to the width by a dense layer | 3.1, table 1 | the same |
| parameters | one layer's, shared by all layers | 3.1 | the same |
| batch | 4,096 sequences | 4.1 | 4,096 rows |
| steps | 125,000 | 4.1 | the same |
| sequence length | 512; a tenth of the pairs are shorter | 4.1 | the same |
| optimizer | LAMB, 0.00176 | 4.1 | the same; betas, epsilon, decay and clipping as in BERT |
| learning rate | | | warm-up over 3,125 steps (*), linear decay |
| dropout | removed from the largest model at the end | 4.8 | none for xxlarge; otherwise 0.1, as in BERT |
| activation | GELU | 3.1 | GELU in its tanh approximation (*) |
| masking | n-grams of at most 3, p(n) as 1/n | 4.1 | the same, 15% of the tokens |
| sentence order | adjacent segments, half of them swapped | 3.1 | the same |
| tokenizer | SentencePiece, 30,000 | 4.1 | trained on your corpus |
| corpus | BookCorpus and English Wikipedia, 16 GB | 4.1 | `data.corpus`; default: Wikipedia only |

(*) From the authors' published code. The warm-up is a fortieth of the steps, as in the LAMB paper for this batch.

`albert_base.py:large`, `:xlarge` and `:xxlarge` are the other sizes of table 1.

Deviations:
- Biases and layer norms have no trust ratio. The text keeps its case.
- LAMB corrects the bias of its moments. That code does not, and the warm-up hides the difference.
- The decay starts at the end of the warm-up and not at step 0.
- An apostrophe, a digit and a letter other than a to z do not start a word (docs/concepts/masking.md).
- Up to 76 tokens of a row are predicted, 15% of 512. The published command has `max_predictions_per_seq=20`.
- `:xlarge` has 32 heads, one for 64 of its width, as section 3.1 defines them. The released model has 16.

`albert_base.py:smoke` trains a very small model in the same way on the embedded corpus in under a minute.
"""

import ml_collections

SIZES = ("large", "xlarge", "xxlarge")


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "albert_base", "dropout": 0.1, "attention_dropout": 0.1}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "unigram", "vocab_size": 30_000},
    }
    config.tasks = {
        "albert": {
            "objective": {"kind": "sentence_order", "masking": {"kind": "ngrams"}},
            "examples": {"kind": "sentence_order"},
            "row_examples": 1,
        }
    }
    config.optimizer = {"kind": "lamb", "learning_rate": 0.00176, "warmup_steps": 3125}
    config.stages = [{"steps": 125_000, "seq_len": 512, "batch": 4096}]
    config.eval = {"every": 2500}
    config.runtime = {"micro_tokens": 4096, "log_every": 100}
    if variant in SIZES:
        config.model["preset"] = f"albert_{variant}"
        config.runtime["micro_tokens"] = {"large": 2048, "xlarge": 1024, "xxlarge": 512}[variant]
        if variant == "xxlarge":
            config.model.update({"dropout": 0.0, "attention_dropout": 0.0})
    elif variant == "smoke":
        config.model.update({"layers": 2, "width": 128, "heads": 2, "feedforward": 512, "embeddings": {"width": 64}})
        config.data = {"corpus": "embedded:en", "tokenizer": {"kind": "unigram", "vocab_size": 2000}}
        config.optimizer.update({"learning_rate": 1e-2, "warmup_steps": 10})
        config.stages = [{"steps": 50, "seq_len": 64, "batch": 32}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"micro_tokens": 1024, "save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke or {', '.join(SIZES)}")
    return config
