"""DistilBERT: a student half as deep as its teacher (Sanh et al., 2019, arXiv 1910.01108).

    python -m bertjax.train --config=configs/distilbert.py:models/bert --config.data.corpus=my/texts

The part after the colon is the teacher: an export of a run or of `python -m bertjax convert`, with a masked-LM head.
The student uses the teacher's tokenizer. On a TPU slice add `--distributed --workdir=gs://BUCKET/distilbert`.

| setting | paper | where | here |
|---|---|---|---|
| student | half the layers, no segment embeddings | section 2 | the same; an untrained pooler stays |
| initial weights | one of two layers of the teacher | section 2 | 0, 2, 4, 7, 9 and 11 of 12 (*) |
| losses | soft targets, masked LM, cosine of hidden states | section 2 | the same, times 5, 2 and 1 (*) |
| tokens of the soft targets | | | all (*) |
| temperature | the same for both | section 2 | 2 (*) |
| next sentence | none | section 2 | none |
| batch | up to 4,000 examples | section 2 | 4,000 rows |
| masking | dynamic | section 2 | the same, 15%: 80% [MASK], 10% random, 10% kept (*) |
| learning rate | | | 5e-4, warm-up over 5% of the steps, linear decay (*) |
| optimizer | | | Adam, betas 0.9 and 0.98, epsilon 1e-6, no weight decay, clip norm 5 (*) |
| position embeddings | | | the teacher's, frozen (*) |
| epochs | | | 3 (*) |
| corpus | that of BERT | section 2 | `data.corpus`; default: Wikipedia |

(*) From the authors' published code (huggingface/transformers, examples/research_projects/distillation). Position
embeddings are frozen by `sinusoidal_pos_embds` in the student's configuration.

For a teacher of another depth, the layers are evenly spaced from the first to the last.

Deviations: that code masks rare words more often.

`distilbert.py:smoke` distills `runs/tiny-smoke/export` on the embedded corpus in under a minute.
`python -m bertjax.train --config=configs/tiny.py:smoke` writes that export.
"""

import ml_collections

from bertjax.config.opening import SavedModel

SMOKE_TEACHER = "runs/tiny-smoke/export"


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    if not variant:
        raise ValueError("name the teacher, such as configs/distilbert.py:models/bert")
    teacher = SMOKE_TEACHER if variant == "smoke" else variant
    model = SavedModel(teacher).model
    if model["layers"] % 2:
        raise ValueError(f"{teacher} has {model['layers']} layers, an odd number; name a teacher with an even number")
    layers = model["layers"] // 2
    config = ml_collections.ConfigDict()
    config.init_from = teacher
    config.init_layers = tuple(round(layer * (2 * layers - 1) / max(layers - 1, 1)) for layer in range(layers))
    config.model = {"preset": "init_from", "layers": layers, "pooler_activation": "relu", "embeddings": {"segments": 0}}
    config.data = {"corpus": "hf:wikimedia/wikipedia/20231101.en", "tokenizer": {"model": f"{teacher}/tokenizer"}}
    config.tasks = {
        "distillation": {
            "objective": {
                "kind": "distilled",
                "objective": {"kind": "mlm"},
                "teacher": teacher,
                "own_factor": 2.0,
                "losses": {
                    "soft": {"kind": "token_logits", "temperature": 2.0, "factor": 5.0},
                    "cosine": {"kind": "output"},
                },
            },
            "examples": {"kind": "full_sentences"},
            "row_examples": 1,
        }
    }
    config.optimizer = {"learning_rate": 5e-4, "warmup_share": 0.05, "b2": 0.98, "weight_decay": 0.0, "clip_norm": 5.0}
    if model["embeddings"].get("positions") == "learned":
        config.optimizer.frozen = ("^encoder/embeddings/position$",)
    config.stages = [{"epochs": 3.0, "seq_len": model["max_positions"], "batch": 4000}]
    config.runtime = {"log_every": 100}
    if variant == "smoke":
        config.data["corpus"] = "embedded:en"
        config.stages = [{"steps": 50, "seq_len": 32, "batch": 32}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"save_every": 20}
    return config
