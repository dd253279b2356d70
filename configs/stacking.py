"""BERT-base by progressive stacking: Gong et al. (2019), "Efficient Training of BERT by Progressively Stacking", ICML.

Run on every host of a TPU slice of 16 chips:

    python -m bertjax.train --distributed --config=configs/stacking.py --workdir=gs://BUCKET/stacking \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/stacking.py --topology=v5e:4x4

| setting | paper | here |
|---|---|---|
| depth | doubled by copying the stack, up to 12 layers | 3, 6, 12 layers |
| initial weights of the upper half | a copy of the lower half | the same |
| steps of each depth | 50,000, 70,000 and 280,000 (*) | the same |
| optimizer at a doubling | starts again (*) | the same: moments of 0 |
| optimizer | Adam, betas 0.9 and 0.999, epsilon 1e-6, weight decay 0.01, no clipping (*) | the same |
| warm-up | 10,000 steps of the first depth (*) | the same |

(*) From the authors' published code, gonglinyuan/StackingBERT: reproduce_bert.sh and README.

Encoder, data, batch and learning rate are those of BERT-base in `bert_base.py`, except that all rows have 128 tokens.

Deviations: the learning rate falls linearly from 1e-4 over all stages. In that code it falls from 8e-4 to 5.5e-4, to
3e-4 and to 0, linearly at each depth, with 102,400 to 122,880 tokens in a batch instead of 32,768.

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
    config.optimizer = {"learning_rate": 1e-4, "warmup_steps": 10_000, "clip_norm": 0.0, "grow_moments": "reset"}
    steps = {3: 50_000, 6: 70_000, 12: 280_000}
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
        config.optimizer.update({"learning_rate": 1e-3, "warmup_steps": 10})
        config.stages = [{"steps": 20, "seq_len": 32, "batch": 32, "layers": layers} for layers in (1, 2, 4)]
        config.eval = {"every": 30, "rows": 64}
        config.runtime = {"save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke")
    return config
