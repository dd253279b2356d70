"""A small student learns a task from a fine-tuned teacher, by one of several published methods.

    python -m bertjax.train --config=configs/finetune/distill.py:pkd --config.init_from=runs/teacher/export \
        --config.model.layers=6 --config.init_layers=[0,2,4,6,8,10] \
        --config.tasks.classify.objective.teacher=runs/teacher/export \
        --config.tasks.classify.examples.train=train.csv --config.tasks.classify.examples.heldout=test.csv \
        --workdir=runs/student

runs/teacher is a fine-tuning of a BERT with 12 layers on the same files, by configs/finetune/classify.py:cls. The
student starts with the listed layers of `init_from`, which may also be a model that was only pretrained. `pkd` needs a
student of two layers or more, whose number divides that of the teacher. The task has the name `classify`.
`:METHOD-regression` predicts numbers, of which soft logits are compared by squared error. Any other recipe takes the
same losses: `objective.kind=distilled` wraps its objective (docs/guides/compression.md).

| variant | losses | source |
|---|---|---|
| `soft` | labels 0.5, soft logits 0.5 at T=2 | Hinton et al. (2015), arXiv 1503.02531 |
| `pkd` | labels 0.5, soft logits 0.5 at T=10, [CLS] states of every k-th layer 100 | Sun et al. (2019) [1] |
| `pkd_last` | the same with the last layers | [1] |
| `logits` | squared error of the logits, no labels | Tang et al. (2019), arXiv 1903.12136 |
| `tinybert_layers` | hidden states and attention scores, no labels | Jiao et al. (2020) [2], first step |
| `tinybert_soft` | soft logits at T=1, no labels | [2], second step |
| `theseus` | labels; layers of the student replace modules of the teacher | Xu et al. (2020) [3] |
| `internal` | labels, soft logits, attention and [CLS] cosine of all layers | Aguilar et al. (2020) [4] |
| `internal_layers` | attention and [CLS] cosine, no labels | [4], one layer after another |

1. PKD, arXiv 1908.09355, section 3.2. The published code searches T in 5, 10, 20, the share of soft logits in 0.2, 0.5,
   0.7 and the factor of states in 10, 100, 500, 1,000; here one of each. `kl` has a factor T^2.
   The published code also divides `kl` by the number of classes (PyTorch's `reduction="mean"`), and the paper does not.
   So the soft logits weigh 2 times as much here with 2 classes, and 3 times with 3: the share of 0.5 is 0.67 or 0.75
   there. For the balance of that code set the factor of `soft` to 0.25 or 0.167.
2. TinyBERT, arXiv 1909.10351, section 3. The second step starts from the export of the first:
   `--config.init_from=runs/first/export`. The published code trains ten epochs and then three, on augmented data.
   The published code averages over the 128 tokens of a row, padding included, and sums over layers. There, keys of
   padding have no difference, and states of padding have one. Here both losses are means over tokens and layers. With
   equal differences, 4 layers and 25 of 128 tokens, attention weighs 4/5 of 25/128 = 0.16 times as much as states there
   and as much as states here: 6.4 times. The balance there depends on the length of the text; a factor of 0.16 for
   `maps` gives the same one. In the second step of a regression that code learns the labels, and
   `:tinybert_soft-regression` learns the teacher's numbers.
3. BERT-of-Theseus, arXiv 2002.02925, section 3. `theseus` has the rate of the published example: 0.3, and 0.0006 more
   at each step, which is 1 after 1,167 steps. The successor is then fine-tuned alone: configs/finetune/classify.py:cls
   with `--config.init_from=runs/first/export`. Embeddings, pooler and head are trained here. The published code trains
   the layers only, `'--config.optimizer.frozen=["^encoder/(embeddings|pooler)/","^heads/"]'` with
   `--config.optimizer.multipliers=[]`, and the student starts with the first layers: `--config.init_layers=[0,1,2]`.
4. Internal representations, arXiv 1910.03723. Two of its three algorithms are trainings one after another, each from
   the export of the one before: first layer 1 learns, then the next one, alone (progressive) or with those below
   (stacked), by `losses.maps.pairs_of_layers=[[1,2]]` and the same of `states`; then `soft`. That the last
   step has no loss of layers is from memory.

Deviations: epochs, rates and batches are those of configs/finetune/classify.py for all methods, and factors of
`internal` are 1. `:METHOD-smoke` has short rows and a high learning rate, for a very small model and a few texts.
"""

import ml_collections

# Parameters that start from random values; see configs/finetune/classify.py.
NEW = "^projections/|^heads/(?!.*/(transform|norm)/)"
STATES = {"kind": "hidden", "compare": "normalized", "on": "summaries", "layer_map": "skip", "factor": 100.0}
INTERNAL = {
    "maps": {"kind": "attention", "compare": "probabilities"},
    "states": {"kind": "hidden", "compare": "cosine", "on": "summaries"},
}
# {variant: (factor of the labels, losses against the teacher)}
METHODS = {
    "soft": (0.5, {"soft": {"kind": "logits", "temperature": 2.0, "factor": 0.5}}),
    "pkd": (0.5, {"soft": {"kind": "logits", "temperature": 10.0, "factor": 0.5}, "states": STATES}),
    "pkd_last": (
        0.5,
        {"soft": {"kind": "logits", "temperature": 10.0, "factor": 0.5}, "states": STATES | {"layer_map": "last"}},
    ),
    "theseus": (1.0, {}),
    "logits": (0.0, {"logits": {"kind": "logits", "compare": "mse"}}),
    "tinybert_layers": (0.0, {"states": {"kind": "hidden", "projection": True}, "maps": {"kind": "attention"}}),
    "tinybert_soft": (0.0, {"soft": {"kind": "logits"}}),
    "internal": (1.0, {"soft": {"kind": "logits"}} | INTERNAL),
    "internal_layers": (0.0, INTERNAL),
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    method, _, form = variant.partition("-")
    if method not in METHODS or form not in ("", "smoke", "regression"):
        raise ValueError(
            f"name a method: {', '.join(METHODS)}; METHOD-smoke makes it small, METHOD-regression predicts numbers"
        )
    own_factor, losses = METHODS[method]
    if form == "regression":
        losses = {name: _of_numbers(loss) for name, loss in losses.items()}
    config = ml_collections.ConfigDict()
    config.model = {"preset": "init_from"}
    kind = "regression" if form == "regression" else "classification"
    objective = {"kind": "distilled", "objective": {"kind": kind}, "own_factor": own_factor, "losses": losses}
    if method == "theseus":
        steps = 10 if form == "smoke" else 1167
        objective = {"kind": "replacing", "objective": {"kind": kind}, "first": 0.3, "steps": steps}
    config.tasks = {
        "classify": {
            "objective": objective,
            "examples": {"kind": "labeled_text", "train": "train.csv", "heldout": "heldout.csv", "text": "text"},
        }
    }
    config.optimizer = {"learning_rate": None, "warmup_share": 0.1, "multipliers": [{"path": NEW, "factor": 20.0}]}
    config.stages = [{"epochs": 4.0, "min_steps": 300, "seq_len": 128, "examples": 16}]
    config.eval = {"every": 0, "rows": 0, "samples": 0}
    config.runtime = {"keep_best": 1}
    if form == "smoke":
        config.optimizer["learning_rate"] = 3e-3
        config.stages[0].update({"min_steps": 0, "seq_len": 32})
    return config


def _of_numbers(loss: dict) -> dict:
    """Return a loss without classes: one logit has no temperature."""
    if loss["kind"] != "logits":
        return loss
    return {name: value for name, value in loss.items() if name != "temperature"} | {"compare": "mse"}
