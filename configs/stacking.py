"""BERT-base by progressive stacking: Gong et al. (2019), "Efficient Training of BERT by Progressively Stacking", ICML.

Run on every host of a TPU slice of 16 chips:

    python -m bertjax.train --distributed --config=configs/stacking.py --workdir=gs://BUCKET/stacking \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax.compile --config=configs/stacking.py --topology=v5e:4x4

| setting | paper | here |
|---|---|---|
| depth | doubled by copying the stack, up to 12 layers | 3, 6, 12 layers |
| initial weights of the upper half | a copy of the lower half | the same, and its optimizer moments |
| training time of each depth | see the paper | a sixth, a sixth and two thirds of the steps |

Encoder, batch, steps and learning rate are those of BERT-base in `bert_base.py`, except that all rows have 128 tokens.
The learning rate continues across stages: a stage does not repeat the warm-up.

`stacking.py:smoke` trains a very small model in the same way on the embedded corpus in under a minute.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "base", "dropout": 0.1, "attention_dropout": 0.1}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 30_000, "lowercase": True},
    }
    config.tasks = {"bert": {"examples": {"kind": "segment_pairs"}, "row_examples": 1}}
    config.optimizer = {"learning_rate": 1e-4, "warmup_steps": 10_000}
    steps = {3: 150_000, 6: 150_000, 12: 600_000}
    config.stages = [
        {"steps": count, "seq_len": 128, "batch": 256, "layers": layers} for layers, count in steps.items()
    ]
    config.eval = {"every": 10_000}
    config.runtime = {"log_every": 100}
    if variant == "smoke":
        config.model.update({"preset": "google_tiny", "layers": 4})
        config.data = {
            "corpus": "embedded:en",
            "tokenizer": {"kind": "wordpiece", "vocab_size": 2000, "lowercase": True},
        }
        config.optimizer = {"learning_rate": 1e-3, "warmup_steps": 10}
        config.stages = [{"steps": 20, "seq_len": 32, "batch": 32, "layers": layers} for layers in (1, 2, 4)]
        config.eval = {"every": 30, "rows": 64}
        config.runtime = {"save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke")
    return config
