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

The variant `race` is RACE (Lai et al., 2017, arXiv 1704.04683), four choices of up to 512 tokens each, as RoBERTa was
fine-tuned on it (Liu et al., 2019, arXiv 1907.11692):

    python -m bertjax.train --config=configs/finetune/choices.py:race --config.init_from=EXPORT --seeds=5 \
        --workdir=runs/race

It reads the folders RACE/train and RACE/dev of the original files, each with the folders `middle` and `high`.
`--config.tasks.choices.examples.further_heldout.high=RACE/dev/high` scores one of these also separately.

| setting of `race` | paper | where | here |
|---|---|---|---|
| batch | 16 questions | table 10 | 16 on average: short questions share rows |
| epochs | 4 | table 10 | the same |
| learning rate | 1e-5, linear decay, a warm-up over 6% of the steps | table 10 | the same |
| weight decay | 0.1 | table 10; 0.01 in the published command | 0.1 |
| Adam | b2 0.98, epsilon 1e-6, no clipping | the published README.race.md | the same |
| passage with question and choice | 512 tokens | section 5.3 | the same: a row of 2,048 tokens has four |
| question and choice | cut to 128 tokens | section 5.3 | not cut below 255 tokens: the longer text is cut first |
| a blank in the question | filled with the choice | preprocess_RACE.py | the same |

`choices.py:smoke` and `choices.py:race-smoke` are the same with short rows and a high learning rate, `smoke` also with
a list of choices, for a very small model and a few records.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    if variant not in ("", "race", "smoke", "race-smoke"):
        raise ValueError(f"unknown variant {variant!r}; choose race, smoke or race-smoke")
    config = _race() if variant.startswith("race") else _swag()
    config.model = {"preset": "init_from"}
    config.eval = {"every": 0, "rows": 0, "samples": 0}
    config.runtime = {"keep_best": 1}
    examples = config.tasks["choices"]["examples"]
    if variant == "smoke":
        examples.update({"context": "context", "question": "", "choices": ["choices"]})
        config.stages[0].update({"seq_len": 32, "examples": 3 * 16})
    if variant == "race-smoke":
        examples["max_tokens"] = 24
        config.stages[0].update({"seq_len": 4 * 24})
    if variant.endswith("smoke"):
        config.optimizer["learning_rate"] = 3e-3
    return config


def _swag() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
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
    return config


def _race() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.tasks = {
        "choices": {
            "objective": {"kind": "multiple_choice"},
            "examples": {"kind": "race", "train": "RACE/train", "heldout": "RACE/dev", "max_tokens": 512},
        }
    }
    config.optimizer = {
        "learning_rate": 1e-5,
        "warmup_share": 0.06,
        "b2": 0.98,
        "epsilon": 1e-6,
        "weight_decay": 0.1,
        "clip_norm": 0.0,
    }
    config.stages = [{"epochs": 4.0, "seq_len": 4 * 512, "examples": 4 * 16}]
    return config
