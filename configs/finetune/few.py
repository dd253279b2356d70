"""Classes of sentences from few examples of each, eight for instance: SetFit (Tunstall et al., 2022, arXiv 2209.11055).

    python -m bertjax.train --config=finetune/few --config.init_from=EXPORT \
        --config.tasks.classify.examples.train=messages.csv --workdir=runs/few

EXPORT must be a sentence encoder, such as MiniLM (docs/guides/huggingface.md).
"""

import ml_collections

VARIANTS = ("", "cls", "smoke")


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r}; choose {', '.join(filter(None, VARIANTS))}")
    classification = {"kind": "classification", "pooling": "cls" if variant == "cls" else "mean"}
    config = ml_collections.ConfigDict()
    config.model = {"preset": "init_from"}
    config.tasks = {
        "classify": {
            "objective": {"kind": "setfit", "objective": classification},
            "examples": {"kind": "labeled_text", "train": "train.csv", "heldout": 0.2, "text": "auto", "label": "auto"},
        }
    }
    config.optimizer = {
        "learning_rate": 2e-5,
        "warmup_share": 0.1,
        "multipliers": [{"path": "^heads/(?!.*/(transform|norm)/)", "factor": 500.0}],
    }
    config.stages = [{"epochs": 40.0, "min_steps": 40, "seq_len": 128, "examples": 32}]
    config.eval = {"rows": 0, "samples": 0}
    if variant == "smoke":
        config.optimizer.learning_rate = 3e-3
        config.optimizer.multipliers[0].factor = 1.0
        config.stages[0].update({"epochs": 4.0, "min_steps": 0, "seq_len": 32})
    return config
