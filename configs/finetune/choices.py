"""SWAG (Zellers et al., 2018, arXiv 1808.05326) as BERT was fine-tuned on it (Devlin et al., 2019, section 4.4).

    python -m bertjax.train --config=configs/finetune/choices.py --config.init_from=EXPORT --seeds=5 --workdir=runs/swag

EXPORT is an export of a run (`runs/tiny/export`) or of a converted model (docs/guides/huggingface.md). The recipe reads
the original files swag/train.csv and swag/val.csv; `--config.tasks.choices.examples.train=` and `...heldout=` name
others. Sentence A is `sent1`. Sentence B is `sent2`, the start of every ending, followed by one of the endings.

| setting | paper | where | here |
|---|---|---|---|
| batch | 16 records of four endings | section 4.4 | 16 on average: short records share rows |
| epochs | 3 | section 4.4 | the same |
| learning rate | 2e-5 | section 4.4 | the same |
| score of an ending | a vector times the pooled [CLS] | section 4.4 | the same, and a bias, which the softmax cancels |
| warm-up | not given; a tenth of the steps in the published run_classifier.py | | a tenth of the steps |
| longest sentence A with B | not given | | 128 tokens, a quarter of a row |

`choices.py:smoke` is the same with short rows, a list of choices and a high learning rate, for a very small model and a
few records.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "init_from"}
    config.tasks = {
        "choices": {
            "objective": {"kind": "multiple_choice"},
            "examples": {
                "kind": "choices",
                "train": "swag/train.csv",
                "heldout": "swag/val.csv",
                "context": "sent1",
                "question": "sent2",
                "choices": ["ending0", "ending1", "ending2", "ending3"],
                "label": "label",
            },
        }
    }
    config.optimizer = {"learning_rate": 2e-5, "warmup_share": 0.1}
    config.stages = [{"epochs": 3.0, "seq_len": 512, "examples": 4 * 16}]
    config.eval = {"every": 0, "rows": 0, "samples": 0}
    config.runtime = {"keep_best": 1}
    if variant == "smoke":
        config.tasks["choices"]["examples"].update({"context": "context", "question": "", "choices": ["choices"]})
        config.optimizer["learning_rate"] = 3e-3
        config.stages[0].update({"seq_len": 32, "examples": 3 * 16})
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke")
    return config
