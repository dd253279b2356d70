"""The BERT family compared: one very small encoder, one corpus and one optimizer, and the changes of each paper.

    python -m bertjax.train --config=benchmarks/family_config.py:electra --workdir=runs/electra

The variants are those of `ROWS`; `electra,3000` trains for 3,000 steps. `benchmarks.family` runs them all.
"""

import ml_collections

from bertjax.opening import SavedModel

STEPS = 2500
# Short rows, so that attention patterns form within one or two minutes on a core.
SEQ_LEN, BATCH = 16, 48
ENCODER = {
    "layers": 2,
    "width": 128,
    "heads": 4,
    "feedforward": 512,
    "max_positions": SEQ_LEN,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "init_stddev": 0.08,
}


def task(objective: str, examples: str = "full_sentences", masking: dict | None = None, **choices) -> dict:
    """Return a task on rows of one example."""
    kind = {"kind": objective} | choices | ({"masking": masking} if masking else {})
    return {"objective": kind, "examples": {"kind": examples}, "row_examples": 1}


MLM = {"mlm": task("mlm")}
_ERNIE_2 = {
    "knowledge": task("mlm", "doc_sentences", {"kind": "phrases"}),
    "capitals": task("capitals", "doc_sentences", {"kind": "phrases"}),
    "document": task("token_document", "token_document", {"kind": "phrases"}),
    "reordering": task("sentence_reordering", "sentence_reordering", {"kind": "phrases"}),
    "distance": task("sentence_distance", "sentence_distance", {"kind": "phrases"}),
}
# Additional settings of each row: the model, the tasks, and the stages, which share the steps equally.
ROWS: dict[str, tuple[dict, dict, list[dict]]] = {
    "bert": ({}, {"bert": task("bert", "segment_pairs")}, [{}]),
    "mlm": ({}, MLM, [{}]),
    "albert": (
        {"sharing": "all", "embedding_width": 64},
        {"albert": task("sentence_order", "sentence_order", {"kind": "ngrams"})},
        [{}],
    ),
    "electra": ({}, {"electra": task("electra", masking={"mask": 1.0, "random": 0.0})}, [{}]),
    "spanbert": ({}, {"spanbert": task("span_boundary", masking={"kind": "spans"})}, [{}]),
    "ernie": (
        {},
        {
            "tokens": task("bert", "segment_pairs"),
            "phrases": task("bert", "segment_pairs", {"kind": "phrases"}),
            "entities": task("bert", "segment_pairs", {"kind": "phrases", "lexicon_size": 10_000}),
        },
        [{"tasks": [name]} for name in ("tokens", "phrases", "entities")],
    ),
    "ernie2": (
        {"task_types": len(_ERNIE_2)},
        {name: _ERNIE_2[name] | {"task_type": number} for number, name in enumerate(_ERNIE_2)},
        [{"tasks": list(_ERNIE_2)[: count + 1]} for count in range(len(_ERNIE_2))],
    ),
    "structbert": ({}, {"structbert": task("structbert", "sentence_structure")}, [{}]),
    "xlnet": (
        {"positions": "relative"},
        {"xlnet": task("permutation", masking={"kind": "ngrams", "rate": 1 / 6, "mask": 0.0, "random": 0.0})},
        [{}],
    ),
    "stacking": ({}, MLM, [{"layers": 1}, {"layers": 2}]),
    "modern": (
        {"norm": "pre", "biases": "heads", "positions": "rotary", "activation": "geglu", "feedforward": 344}
        | {"window": 4, "global_every": 2, "segments": 0},
        {"mlm": task("mlm", "doc_sentences", {"rate": 0.3})},
        [{}],
    ),
}
# Every second layer of this row is the student's at the start, and it imitates the whole.
TEACHER, STUDENT = "mlm", "distilbert"


def get_config(variant: str = "mlm") -> ml_collections.ConfigDict:
    name, _, more = variant.partition(",")
    steps, _, teacher = more.partition(",")
    steps = int(steps or STEPS)
    config = ml_collections.ConfigDict()
    if name == STUDENT:
        layers = SavedModel(teacher).settings["model"]["layers"]
        config.init_from, config.init_layers = teacher, tuple(range(0, layers, 2))
        config.model = {"preset": "init_from", "layers": layers // 2}
        config.tasks = {STUDENT: task("distillation", teacher=teacher)}
        stages = [{}]
    elif name in ROWS:
        model, config.tasks, stages = ROWS[name]
        config.model = ENCODER | model
    else:
        raise ValueError(f"unknown variant {name!r}; choose one of {', '.join([*ROWS, STUDENT])}")
    config.data = {"corpus": "embedded:en", "tokenizer": {"vocab_size": 4000}}
    config.optimizer = {"learning_rate": 2e-3, "warmup_share": 0.1, "b2": 0.98}
    edges = [steps * index // len(stages) for index in range(len(stages) + 1)]
    config.stages = [
        {"steps": stop - start, "seq_len": SEQ_LEN, "batch": BATCH} | choices
        for start, stop, choices in zip(edges, edges[1:], stages)
    ]
    config.eval = {"every": 0, "samples": 0}
    config.runtime = {"unroll": True, "log_every": 50, "save_every": steps}
    return config
