"""Parts of speech and morphological features of Universal Dependencies (Nivre et al., 2020, arXiv 2004.10643).

    python -m bertjax.train --config=configs/finetune/tags.py --config.init_from=EXPORT --seeds=5 --workdir=runs/tags

EXPORT is an export of a run (`runs/tiny/export`) or of a converted model (docs/guides/huggingface.md). The recipe reads
ud/train.conllu and ud/dev.conllu; `--config.tasks.tags.examples.train=` and `...heldout=` name others. The tag of a
word is its universal part of speech, `upos`. `--config.tasks.tags.examples.conllu=` chooses another tag: `xpos`, the
part of speech of the language, or a feature such as `feats.Case`, with `_` for words without it.

The score is `token_accuracy`: the share of words with the right tag. `don't` is two words, `do` and `n't`, as in the
file. `majority_accuracy` beside it is that of always answering the most frequent tag. It is high for most features,
since most words do not have them.

| setting | here |
|---|---|
| batch, epochs, learning rate, warm-up | as in `ner.py`: 32 sentences on average, 3, 5e-5, a tenth of the steps |
| representation of a word | its first piece, as in Devlin et al. (2019, section 5.3; arXiv 1810.04805) |
| output layer | linear, no CRF |

`tags.py:smoke` is the same with short rows and a high learning rate, for a very small model and a few sentences.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "init_from"}
    config.tasks = {
        "tags": {
            "objective": {"kind": "tagging"},
            "examples": {"kind": "tagged", "train": "ud/train.conllu", "heldout": "ud/dev.conllu", "conllu": "upos"},
        }
    }
    config.optimizer = {"learning_rate": 5e-5, "warmup_share": 0.1}
    config.stages = [{"epochs": 3.0, "seq_len": 128, "examples": 32}]
    config.eval = {"every": 0, "rows": 0, "samples": 0}
    config.runtime = {"keep_best": 1}
    if variant == "smoke":
        config.tasks["tags"]["examples"]["stride"] = 8
        config.optimizer["learning_rate"] = 3e-3
        config.stages[0].update({"seq_len": 24, "examples": 16})
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke")
    return config
