"""Named entities of CoNLL-2003, as BERT was fine-tuned on them (Devlin et al., 2019, section 5.3; arXiv 1810.04805).

    python -m bertjax.train --config=configs/finetune/ner.py --config.init_from=EXPORT --seeds=5 --workdir=runs/ner

EXPORT is an export of a run (`runs/tiny/export`) or of a converted model (docs/guides/huggingface.md), preferably one
that keeps capitals. The recipe reads conll2003/train.txt and conll2003/valid.txt, with the word in the first column and
its tag in the last; `--config.tasks.ner.examples.train=`, `...heldout=`, `...word=` and `...tag=` name others. The
score is that of the development set; for the final number, pass the test set as `...heldout=`.

| setting | paper | where | here |
|---|---|---|---|
| batch | 16 or 32 sentences, best on dev | appendix A.3 | 32 on average: short sentences share rows |
| epochs | 2, 3 or 4, best on dev | appendix A.3 | 3 |
| learning rate | 5e-5, 3e-5 or 2e-5, best on dev | appendix A.3 | 5e-5 |
| warm-up | not given; a tenth of the steps in the published run_classifier.py | | a tenth of the steps |
| context | as much of the document as fits | section 5.3 | the sentence, which lowers the score |
| representation of a word | its first piece | section 5.3 | the same |
| output layer | linear, no CRF | section 5.3 | the same |

`ner.py:smoke` is the same with short rows and a high learning rate, for a very small model and a few sentences.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "init_from"}
    config.tasks = {
        "ner": {
            "objective": {"kind": "tagging"},
            "examples": {"kind": "tagged", "train": "conll2003/train.txt", "heldout": "conll2003/valid.txt"},
        }
    }
    config.optimizer = {"learning_rate": 5e-5, "warmup_share": 0.1}
    config.stages = [{"epochs": 3.0, "seq_len": 128, "examples": 32}]
    config.eval = {"every": 0, "rows": 0, "samples": 0}
    config.runtime = {"keep_best": 1}
    if variant == "smoke":
        config.tasks["ner"]["examples"]["stride"] = 8
        config.optimizer["learning_rate"] = 3e-3
        config.stages[0].update({"seq_len": 24, "examples": 16})
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke")
    return config
