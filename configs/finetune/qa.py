"""SQuAD 1.1 and 2.0 as BERT was fine-tuned on them (Devlin et al., 2019, sections 4.2 and 4.3; arXiv 1810.04805).

    python -m bertjax.train --config=configs/finetune/qa.py --config.init_from=EXPORT --seeds=5 --workdir=runs/squad1
    python -m bertjax.train --config=configs/finetune/qa.py:v2 --config.init_from=EXPORT --seeds=5 --workdir=runs/squad2

EXPORT is an export of a run (`runs/tiny/export`) or of a converted model (docs/guides/huggingface.md); with fewer than
384 positions, rows, questions and strides are shorter. The recipe reads squad/train-v1.1.json and squad/dev-v1.1.json
(-v2.0 for `v2`); `--config.tasks.qa.examples.train=` and `...heldout=` name others. With `v2`, the threshold for no
answer is tuned on the dev set, reported with its F1 and kept in the export.

| setting | paper | where | here |
|---|---|---|---|
| batch | 32 windows; 48 for 2.0 | sections 4.2 and 4.3 | the same on average: short windows share rows |
| epochs | 3; 2 for 2.0 | sections 4.2 and 4.3 | the same |
| learning rate | 5e-5 | sections 4.2 and 4.3 | the same |
| warm-up | a tenth of the steps | the published run_squad.py | the same |
| row | 384 tokens, windows 128 apart, 64 for the question | the published run_squad.py | the same |
| answers | 30 tokens at most, the 20 best kept | the published run_squad.py | the same |
| TriviaQA first | for the leaderboard, not for the single-system results | section 4.2 | no |

`qa.py:smoke` and `qa.py:v2-smoke` are the same with short rows and a high learning rate, for a very small model and a
few questions.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    if variant not in ("", "v2", "smoke", "v2-smoke"):
        raise ValueError(f"unknown variant {variant!r}; choose v2, smoke or v2-smoke")
    second = variant.startswith("v2")
    version = "v2.0" if second else "v1.1"
    config = ml_collections.ConfigDict()
    config.model = {"preset": "init_from"}
    config.tasks = {
        "qa": {
            "objective": {"kind": "question_answering", "longest": 30, "nbest": 20},
            "examples": {
                "kind": "questions",
                "train": f"squad/train-{version}.json",
                "heldout": f"squad/dev-{version}.json",
                "stride": 128,
                "max_question": 64,
            },
        }
    }
    config.optimizer = {"learning_rate": 5e-5, "warmup_share": 0.1}
    config.stages = [{"epochs": 2.0 if second else 3.0, "seq_len": 384, "examples": 48 if second else 32}]
    config.eval = {"every": 0, "rows": 0, "samples": 0}
    config.runtime = {"keep_best": 1}
    if variant.endswith("smoke"):
        config.tasks["qa"]["examples"].update({"stride": 8, "max_question": 8})
        config.optimizer["learning_rate"] = 3e-3
        config.stages[0].update({"seq_len": 32, "examples": 16})
    return config
