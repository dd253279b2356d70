"""ELECTRA-Small as published: Clark et al. (2020), arXiv 2003.10555, appendix A; the other sizes are variants.

Run on every host of a TPU slice of 16 chips (the paper used one V100 for four days for this size, and 16 TPU v3 for the
base model):

    python -m bertjax.train --distributed --config=configs/electra_small.py --workdir=gs://BUCKET/electra_small \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/electra_small.py --topology=v5e:4x4

| setting | small | base | large | where | here |
|---|---|---|---|---|---|
| layers, width, heads, feed-forward | 12, 256, 4, 1024 | 12, 768, 12, 3072 | 24, 1024, 16, 4096 | table 6 | the same |
| embeddings | 128 wide | 768 | 1024 | table 6 | the same |
| generator's widths | 1/4 | 1/3 | 1/4 | table 6 | the same |
| discriminator's loss | times 50 | 50 | 50 | section 2 | the same |
| masked | 15% | 15% | 25% | table 6 | the same, always with [MASK] (section 2) |
| batch | 128 | 256 | 2,048 | table 6 | the same |
| steps | 1,000,000 | 766,000 | 400,000 | table 6 | the same |
| sequence length | 128 | 512 | 512 | table 6 (*) | the same |
| learning rate | 5e-4 | 2e-4 | 2e-4 | table 6 | warm-up over 10,000 steps, linear decay |
| optimizer | | | | table 6 | Adam, weight decay 0.01, epsilon 1e-6, clip norm 1 (*) |
| dropout | 0.1 | 0.1 | 0.1 | table 6 | the same, 0.1 on attention |
| tokenizer | | | | (*) | WordPiece, 30,522, lower case, trained on your corpus |

(*) From the authors' published code, google-research/electra.

`electra_small.py:base` and `:large` are the other sizes. `electra_small.py:mlm` trains the small encoder with masked
language modeling only, also at 15%: the ablation of section 3.2.

Deviations:
- Text is cut into full sentences; that code cuts an example into two segments.
- That code leaves 15% of the masked tokens unchanged, which the paper does not mention.
- Adam corrects its bias. That code does not, and the 10,000 steps of warm-up hide the difference.
- The decay starts at the end of the warm-up and not at step 0.

No objective here trains the pooler. It has GELU in all sizes, so that transformers can hold a classifier that starts
from the model.

`electra_small.py:smoke` trains a very small model in the same way on the embedded corpus in under a minute.
"""

import ml_collections

# Encoder, share of the generator, masked share, learning rate, stage.
SIZES = {
    "base": ("base", 1 / 3, 0.15, 2e-4, {"steps": 766_000, "seq_len": 512, "batch": 256}),
    "large": ("large", 1 / 4, 0.25, 2e-4, {"steps": 400_000, "seq_len": 512, "batch": 2048}),
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "electra_small", "dropout": 0.1, "attention_dropout": 0.1, "pooler_activation": "gelu"}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 30_522, "lowercase": True},
    }
    masking = {"kind": "tokens", "mask": 1.0, "random": 0.0}
    config.tasks = {
        "electra": {
            "objective": {"kind": "electra", "masking": masking, "generator_share": 1 / 4},
            "examples": {"kind": "full_sentences"},
            "row_examples": 1,
        }
    }
    config.optimizer = {"learning_rate": 5e-4, "warmup_steps": 10_000}
    config.stages = [{"steps": 1_000_000, "seq_len": 128, "batch": 128}]
    config.eval = {"every": 10_000}
    config.runtime = {"log_every": 100}
    if variant in SIZES:
        config.model["preset"], share, rate, config.optimizer["learning_rate"], stage = SIZES[variant]
        config.tasks["electra"]["objective"].update({"generator_share": share, "masking": masking | {"rate": rate}})
        config.stages = [stage]
    elif variant == "mlm":
        config.tasks = {"mlm": config.tasks["electra"].to_dict() | {"objective": {"kind": "mlm"}}}
    elif variant == "smoke":
        config.model.update({"preset": "google_tiny", "embeddings": {"width": 64}})
        config.data = {
            "corpus": "embedded:en",
            "tokenizer": {"kind": "wordpiece", "vocab_size": 2000, "lowercase": True},
        }
        config.optimizer = {"learning_rate": 1e-3, "warmup_steps": 10}
        config.stages = [{"steps": 50, "seq_len": 32, "batch": 32}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose {', '.join(SIZES)}, mlm or smoke")
    return config
