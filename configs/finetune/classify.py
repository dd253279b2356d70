"""Classes of your own sentences: any file of texts and labels, two classes or hundreds, with few examples of each.

    python -m bertjax.train --config=finetune/classify --config.init_from=EXPORT \
        --config.tasks.classify.examples.train=messages.csv --workdir=runs/mine

EXPORT is an export of a run (`runs/tiny/export`) or of a converted model (docs/guides/huggingface.md). The file is a
.tsv, .csv or .jsonl (and .gz, .zst or .xz). A fifth of it is held out; `--config.tasks.classify.examples.heldout=`
names a file instead, or another share. `--config.tasks.classify.examples.folds=5` holds out each fifth in turn, which
checks the labels of all records. The columns of text and label are found if only one can be each; flags for
`examples.text` and `examples.label` name them, and `examples.pair` names the column of a second text.

Three variants take the same flags. `classify.py:multi_label` predicts any number of classes for each text, whose labels
are `sports,politics`. `classify.py:regression` predicts a number for each text. `classify.py:tags` predicts a tag for
each word of a file in columns, as in CoNLL-2003. The task has the name `classify` in all of them.

| setting | value | why |
|---|---|---|
| text as one vector | the mean of its hidden states | many classes from few examples; see docs/guides/finetuning.md |
| batch | 16 examples on average: short texts share rows | twice as many updates as with 32 |
| epochs | 4, and at least 300 updates | a file of 500 texts would have 125 updates |
| learning rate | 5e-5 x 768 / width of the encoder | narrow encoders need higher rates |
| rate of the new head | 20 times that of the encoder | it starts from random values; see `NEW` |
| warm-up | a tenth of the updates | few updates are less stable without |
| longest text | 128 tokens, a whole row | longer ones are cut, and their number is printed |

`classify.py:cls` has BERT's pooler on [CLS] in place of the mean, which transformers' classes and pipelines compute.
With the mean the exported folder is one of sentence-transformers. `few.py` is the recipe for a handful of examples of
each class. `classify.py:smoke` is the recipe with short rows and a high learning rate, for a very
small model and a few texts.
"""

import ml_collections

VARIANTS = ("", "cls", "multi_label", "regression", "tags", "smoke")
# Parameters of heads that start from random values. ModernBERT's heads start with the dense layer and the norm of its
# masked language model head, which keep the encoder's rate.
NEW = "^heads/(?!.*/(transform|norm)/)"


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r}; choose {', '.join(filter(None, VARIANTS))}")
    objective = {"kind": "classification", "pooling": "cls" if variant == "cls" else "mean"}
    examples = {"kind": "labeled_text", "train": "train.csv", "heldout": 0.2, "text": "auto", "label": "auto"}
    if variant in ("multi_label", "regression"):
        objective["kind"] = variant
    if variant == "multi_label":
        examples["kind"] = "label_sets"
    if variant == "tags":
        objective = {"kind": "tagging"}
        examples = {"kind": "tagged", "train": "train.txt", "heldout": 0.2}
    config = ml_collections.ConfigDict()
    config.model = {"preset": "init_from"}
    config.tasks = {"classify": {"objective": objective, "examples": examples}}
    config.optimizer = {"learning_rate": None, "warmup_share": 0.1, "multipliers": [{"path": NEW, "factor": 20.0}]}
    config.stages = [{"epochs": 4.0, "min_steps": 300, "seq_len": 128, "examples": 16}]
    config.eval = {"every": 0, "rows": 0, "samples": 0}
    config.runtime = {"keep_best": 1}
    if variant == "smoke":
        config.optimizer["learning_rate"] = 3e-3
        config.stages[0].update({"min_steps": 0, "seq_len": 32})
    return config
