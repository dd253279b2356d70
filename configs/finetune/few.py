"""Classes of sentences from few examples of each, such as eight: SetFit (Tunstall et al., 2022, arXiv 2209.11055).

    python -m bertjax.train --config=finetune/few --config.init_from=EXPORT \
        --config.tasks.classify.examples.train=messages.csv --workdir=runs/few

EXPORT is a sentence encoder such as MiniLM: one whose mean hidden states have a meaning (docs/guides/huggingface.md).
The file is one of `classify.py`, whose flags are the same, except that settings of the classification are those of the
wrapped objective: `--config.tasks.classify.objective.objective.precision=0.95`. A fifth of the file is held out. If
that is too much, `--config.tasks.classify.examples.heldout=` names other labeled texts. The same file may be named:
then all of its records train, and the scores are those of texts that the model has seen.

Texts of one class are pulled together and those of different classes pushed apart, which trains the encoder. The
classifier learns from the same batches and does not change the encoder. The export is a classifier like any other.

| setting | published | where | here |
|---|---|---|---|
| loss of pairs | squared error of the cosine to 1 or 0 | section 3; training_args.py | the same |
| pairs of a batch | 16, drawn from all pairs | run_fewshot.py | all of 32 texts |
| pairs of one class | half of all pairs, drawn repeatedly | sampler.py | half of the weight |
| pairs of a text with itself | among them | sampler.py | if a batch has the text twice: of files below 35 texts |
| number of pairs | 2 x R x texts, R = 20 | run_fewshot.py | 10 epochs, at least 40 updates |
| learning rate | 2e-5, linear decay | trainer.py | the same |
| warm-up | a tenth of the updates | training_args.py | the same |
| optimizer | AdamW, weight decay 0.01 | training_args.py | the same |
| text as one vector | the pooling of the encoder, often the mean | section 3 | the mean |
| classifier | scikit-learn's logistic regression, afterwards | modeling.py | softmax, by the same updates |
| its learning rate | 0.01 if it is trained by gradients | training_args.py | the same, decays to 0 |
| longest text | 256 tokens | run_fewshot.py | 128 tokens, a whole row |
| encoder | paraphrase-mpnet-base-v2 | run_fewshot.py | yours |

The files are those of the authors' library, version 1.1.3, and of its scripts. There each text is in 80 pairs, and so
is computed 80 times. Here it is computed once an epoch, in 31 pairs: 10 times, or in small files as often as 40 updates
need, which is about 80 times for 8 examples of each of 2 classes. For hundreds of examples of each class use
`classify.py`.

`few.py:cls` has BERT's pooler on [CLS] in place of the mean, for an encoder whose pooler was trained.
`few.py:smoke` is the recipe with short rows and a high learning rate, for a very small model and a few texts.
"""

import ml_collections

VARIANTS = ("", "cls", "smoke")
# Parameters of heads that start from random values, as in `classify.py`.
NEW = "^heads/(?!.*/(transform|norm)/)"


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
    config.optimizer = {"learning_rate": 2e-5, "warmup_share": 0.1, "multipliers": [{"path": NEW, "factor": 500.0}]}
    config.stages = [{"epochs": 10.0, "min_steps": 40, "seq_len": 128, "examples": 32}]
    config.eval = {"rows": 0, "samples": 0}
    if variant == "smoke":
        config.optimizer.learning_rate = 3e-3
        config.optimizer.multipliers[0]["factor"] = 1.0
        config.stages[0].update({"epochs": 4.0, "min_steps": 0, "seq_len": 32})
    return config
