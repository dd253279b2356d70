"""DeBERTa-v3, base size: He et al. (2021), arXiv 2111.09543; the other sizes are variants.

Run on every host of a TPU slice of 64 chips:

    python -m bertjax.train --distributed --config=configs/deberta_v3.py --workdir=gs://BUCKET/deberta_v3 \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/deberta_v3.py --topology=v5e:8x8

| setting | xsmall | small | base | large | where | here |
|---|---|---|---|---|---|---|
| layers, width, heads | 12, 384, 6 | 6, 768, 12 | 12, 768, 12 | 24, 1024, 16 | (*) | the same |
| feed-forward | 1,536 | 3,072 | 3,072 | 4,096 | (*) | the same |
| generator's layers | 6 | 3 | 6 | 12 | (*) | the same: half of them, of the same width |
| learning rate | 5e-4 | 5e-4 | 5e-4 | 3e-4 | 4.1 | the same; xsmall's is not in the paper |
| warm-up | 10,000 | 10,000 | 10,000 | 10,000 | 4.1 | the same, then linear decay |
| batch | 8,192 | 8,192 | 8,192 | 8,192 | 4.1 | the same |
| steps | 500,000 | 500,000 | 500,000 | 500,000 | 4.1 | the same |

| setting | paper | where | here |
|---|---|---|---|
| attention | disentangled: content to position, position to content | 2.1 | the same |
| distances | 256 buckets to either side, up to 512 tokens (*) | | the same |
| objective | replaced token detection, weight 50 (10 in their code) | 3.1 | the same, 50 |
| embeddings | shared, without the discriminator's gradient | 3.3 | `embedding_sharing=gradient_disentangled` |
| masked | 15%, all of them [MASK] (*) | | the same |
| sequence length | 512 (*) | | the same |
| optimizer | AdamW, betas 0.9 and 0.98 | 4.1 | the same, weight decay 0.01, epsilon 1e-6, clip norm 1 |
| dropout | 0.1 (*) | | the same |
| tokenizer | SentencePiece, 128,100 (*), cased | 4.1 | SentencePiece of this size, trained on your corpus |
| corpus | 160 GB, as DeBERTa-v2 | 4.1 | `data.corpus`; default: Wikipedia only |

(*) From the authors' published code, microsoft/DeBERTa: experiments/language_model, DeBERTa/apps/tasks/rtd_task.py.

Deviations:
- Their generator predicts with an enhanced mask decoder, which adds absolute positions before the last layer and runs
  that layer twice. Here it predicts from the last states.
- Their head on replaced tokens adds the state of [CLS] to each token's and normalizes the sum. Here it is ELECTRA's.
- They draw masked tokens one in each stretch of six. Here they are drawn over the whole text.
- Their layers drop out channels of the distance embeddings. Here they do not.
- Their code updates generator and discriminator one after the other, by an optimizer each. Here one step updates both,
  and the gradients of both count in the norm that clips.
- Text is cut into full sentences; that code joins all documents and cuts anywhere.

`deberta_v3.py:xsmall`, `:small` and `:large` are the other sizes. `deberta_v3.py:smoke` trains a very small model in
the same way on the embedded corpus in under a minute.
"""

import ml_collections

# Learning rates.
SIZES = {"xsmall": 5e-4, "small": 5e-4, "base": 5e-4, "large": 3e-4}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    size = variant if variant in SIZES else "base"
    config = ml_collections.ConfigDict()
    config.model = {"preset": f"deberta_v3_{size}"}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "unigram", "vocab_size": 128_100},
    }
    objective = {
        "kind": "electra",
        "masking": {"kind": "tokens", "mask": 1.0, "random": 0.0},
        "generator_share": 1.0,
        "generator_depth": 0.5,
        "embedding_sharing": "gradient_disentangled",
    }
    config.tasks = {"electra": {"objective": objective, "examples": {"kind": "full_sentences"}, "row_examples": 1}}
    config.optimizer = {"learning_rate": SIZES[size], "warmup_steps": 10_000, "b2": 0.98}
    config.stages = [{"steps": 500_000, "seq_len": 512, "batch": 8192}]
    config.eval = {"every": 10_000}
    config.runtime = {"micro_tokens": 8192, "log_every": 100}
    if variant == "smoke":
        config.model.update({"layers": 2, "width": 128, "heads": 2, "feedforward": 512})
        config.data = {"corpus": "embedded:en", "tokenizer": {"kind": "unigram", "vocab_size": 2000}}
        config.optimizer.update({"learning_rate": 1e-3, "warmup_steps": 10})
        config.stages = [{"steps": 50, "seq_len": 32, "batch": 32}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"save_every": 20}
    elif variant and variant not in SIZES:
        raise ValueError(f"unknown variant {variant!r}; choose {', '.join(SIZES)} or smoke")
    return config
