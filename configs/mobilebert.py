"""MobileBERT: a thin student as deep as its teacher (Sun et al., 2020, arXiv 2004.02984).

    python -m bertjax.train --config=configs/mobilebert.py:runs/ib_bert/export --config.data.corpus=my/texts

The part after the colon is the teacher: an export of `ib_bert.py`, or of another encoder with a masked-LM head. The
student has its depth, width, heads and tokenizer. On a TPU slice add `--distributed --workdir=gs://BUCKET/mobilebert`.

| setting | paper or code | where | here |
|---|---|---|---|
| student | 24 layers, bottlenecks of 128, four feed-forward networks | table 1 | width / 4, as deep as the teacher |
| embeddings | 128 wide, trigrams | section 3.4 | width / 4, trigrams |
| activation, norm | ReLU, NoNorm | section 3.3 | the same |
| transfer | states, their means and variances, attention of all layers | section 3.5, (*) | the same, see below |
| its factors | 100, 5,000 and 5, 1 | (*) | 100 D, 5, 1 |
| distillation | half masked LM, half soft logits at T=1 | section 3.5, (*) | the same |
| steps | 240,000 of transfer, then 500,000 | (*) | the same |
| batch | 2,048 rows of 512 tokens | (*) | the same |
| optimizer | LAMB, rate 1.5e-3, warm-up over 10,000 steps | (*) | the same in both stages |
| dropout | none while it is taught | (*) | the same |

(*) From the authors' published code, google-research/mobilebert: README.md and run_pretraining.py.

Deviations:
- All layers are taught at once (the paper's joint transfer), where the published code teaches one after the other. For
  that, give each layer a task with `pairs_of_layers=[[l,l]]` and a stage with `frozen_layers`.
- States are scaled to length 1 before they are compared, and not layer-normed, hence the factor D. Means and variances
  have one factor, that of the variances.
- Embeddings are also taught. In the paper they are copied from the teacher.
- There is no next-sentence term, and text is cut into full sentences.
- LAMB corrects the bias of its moments, and the decay starts at the end of the warm-up. That code does neither.
- The published model has no pooler layer (`classifier_activation: false`): its heads on examples read the state of
  [CLS]. Here a dense layer and tanh come between.

`mobilebert.py:smoke` teaches a student of `runs/ib_bert-smoke/export` on the embedded corpus in about a minute.
`python -m bertjax.train --config=configs/ib_bert.py:smoke` writes that export.
"""

import ml_collections

from bertjax.config.opening import SavedModel

SMOKE_TEACHER = "runs/ib_bert-smoke/export"


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    if not variant:
        raise ValueError("name the teacher, such as configs/mobilebert.py:runs/ib_bert/export")
    teacher = SMOKE_TEACHER if variant == "smoke" else variant
    model = SavedModel(teacher).model
    width = model["width"]
    if width % (4 * model["heads"]):
        raise ValueError(
            f"{teacher} has width={width} and heads={model['heads']}, which do not divide a bottleneck of a quarter of "
            "the width; name a teacher with fewer heads"
        )
    config = ml_collections.ConfigDict()
    config.model = {
        "preset": "mobilebert",
        **{name: model[name] for name in ("layers", "width", "heads", "max_positions")},
        "embeddings": {"kind": "mobilebert", "width": width // 4, "segments": model["embeddings"]["segments"]},
        "block": {"kind": "mobilebert", "inner_width": width // 4},
        "feedforward": width,
        "attention_dropout": 0.0,
    }
    config.data = {"corpus": "hf:wikimedia/wikipedia/20231101.en", "tokenizer": {"model": f"{teacher}/tokenizer"}}
    transfer = {
        "states": {"kind": "hidden", "compare": "normalized", "factor": 100.0 * width},
        "statistics": {"kind": "hidden", "compare": "statistics", "factor": 5.0},
        "maps": {"kind": "attention", "compare": "probabilities"},
    }
    soft = {"soft": {"kind": "logits", "factor": 0.5}}
    config.tasks = {
        name: {
            "objective": {
                "kind": "distilled",
                "objective": {"kind": "mlm"},
                "teacher": teacher,
                "own_factor": factor,
                "losses": losses,
            },
            "examples": {"kind": "full_sentences"},
            "row_examples": 1,
        }
        for name, factor, losses in (("transfer", 0.0, transfer), ("distillation", 0.5, soft))
    }
    config.optimizer = {"kind": "lamb", "learning_rate": 1.5e-3, "warmup_steps": 10_000}
    rows = {"seq_len": model["max_positions"], "batch": 2048}
    config.stages = [
        {"steps": 240_000, "tasks": ("transfer",), **rows},
        {"steps": 500_000, "tasks": ("distillation",), "learning_rate": 1.5e-3, "warmup_steps": 10_000, **rows},
    ]
    config.eval = {"every": 10_000}
    config.runtime = {"log_every": 100}
    if variant == "smoke":
        config.data["corpus"] = "embedded:en"
        config.optimizer.update({"learning_rate": 1e-2, "warmup_steps": 5})
        rows = {"seq_len": 32, "batch": 32}
        config.stages = [
            {"steps": 30, "tasks": ("transfer",), **rows},
            {"steps": 40, "tasks": ("distillation",), "learning_rate": 1e-2, "warmup_steps": 5, **rows},
        ]
        config.eval = {"every": 35, "rows": 64}
        config.runtime = {"save_every": 35}
    return config
