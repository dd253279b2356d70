"""A narrow student with a small vocabulary (Zhao et al., 2019, arXiv 1909.11687).

    python -m bertjax prepare --config=configs/small_vocabulary.py:models/bert --config.data.corpus=my/texts
    python -m bertjax extend models/bert --to=models/mixed --mix=STORE/tokenizer
    python -m bertjax.train --config=configs/adapt.py:models/mixed --config.data.corpus=my/texts --workdir=runs/mixed
    python -m bertjax.train --config=configs/small_vocabulary.py:runs/mixed/export --config.data.corpus=my/texts

The first command trains the student's tokenizer and prints the folder STORE. The next two give a WordPiece teacher the
student's vocabulary and train it on words that are split by either one. The part after the colon is the teacher: an
export with the layers of BERT. The student has its depth and heads, and a quarter of its width.
Other sizes: `--config.model.width=96 --config.model.feedforward=384`. See docs/guides/compression.md.

| setting | paper | where | here |
|---|---|---|---|
| vocabulary | about 5,000 pieces, WordPiece | version 2, abstract and (*) | 5,000 |
| student | as deep as its teacher, narrower | (*) claim 7 | width / 4, 192 for BERT-base |
| mixed vocabulary | each word by one of both, drawn at random | (*) claim 11 | the same, once for a corpus |
| objective | masked LM and next sentence, as the teacher | version 1 | the same |
| projections | mean squared error of parameters, U and V for all layers | (*) claim 2 | the same, upward |
| its factor | | | 10 |
| optimizer, batch, rate, steps | | | not the paper's |

(*) Patent US 11,797,862 and its continuation US 12,260,340, of the same authors.

Deviations:
- The teacher is trained on mixed text first, and is then frozen. In version 1 both train at the same time.
- The teacher has one softmax over both vocabularies, where the paper has one for each. A piece that both vocabularies
  have is one piece, with one embedding.
- Heads, the pooler and the dense layer of a factorized embedding are not compared.

`small_vocabulary.py:smoke` trains a student of `runs/mixed-smoke/export` on the embedded corpus in under a minute. That
teacher is made in the same way:

    python -m bertjax.train --config=configs/bert_base.py:smoke
    python -m bertjax prepare --config=configs/bert_base.py:smoke --config.data.tokenizer.vocab_size=800
    python -m bertjax extend runs/bert_base-smoke/export --to=models/mixed-smoke --mix=STORE/tokenizer
    python -m bertjax.train --config=configs/adapt.py:models/mixed-smoke --config.data.corpus=embedded:en \
        --config.stages.0.steps=50 --config.optimizer.warmup_steps=10 --workdir=runs/mixed-smoke
"""

import ml_collections

from bertjax.config.opening import SavedModel

SMOKE_TEACHER = "runs/mixed-smoke/export"


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    if not variant:
        raise ValueError("name the teacher, such as configs/small_vocabulary.py:runs/mixed/export")
    teacher = SMOKE_TEACHER if variant == "smoke" else variant
    model = SavedModel(teacher).model
    width = model["width"] // 4
    if width % model["heads"]:
        raise ValueError(
            f"{teacher} has width={model['width']} and heads={model['heads']}, which do not divide a quarter of the "
            "width; name another teacher"
        )
    config = ml_collections.ConfigDict()
    config.model = model | {"vocab_size": 0, "width": width, "feedforward": 4 * width, "head_width": 0}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 5000, "lowercase": True},
    }
    losses = {"projections": {"kind": "parameters", "factor": 10.0}}
    config.tasks = {
        "bert": {
            "objective": {"kind": "distilled", "objective": {"kind": "bert"}, "teacher": teacher, "losses": losses},
            "examples": {"kind": "segment_pairs"},
            "row_examples": 1,
        }
    }
    config.optimizer = {"learning_rate": 5e-4, "warmup_steps": 10_000}
    config.stages = [{"steps": 500_000, "seq_len": min(128, model["max_positions"]), "batch": 256}]
    config.eval = {"every": 10_000}
    config.runtime = {"log_every": 100}
    if variant == "smoke":
        config.data["corpus"] = "embedded:en"
        config.data["tokenizer"]["vocab_size"] = 800
        config.optimizer = {"learning_rate": 5e-3, "warmup_steps": 10}
        config.stages = [{"steps": 50, "seq_len": 32, "batch": 32}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"save_every": 20}
    return config
