"""The BERT family compared: one very small encoder, one corpus and one optimizer, and the changes of each paper.

    python -m bertjax.train --config=benchmarks/family_config.py:electra,3000,2e-3 --workdir=runs/electra

The variant is ROW,STEPS,RATE: a name of `ROWS`, `ABLATIONS` or `STUDENT`, the steps of the whole run, and the peak of
the learning rate. `distilbert` also needs its teacher, an export of the row `mlm`: distilbert,3000,2e-3,EXPORT.
`benchmarks.family` runs them all.
"""

from typing import Any, NamedTuple

import ml_collections

SEQ_LEN, BATCH = 32, 48
# Steps of `mlm`; every other row has the steps that cost as many FLOPs.
STEPS = 3000
# Every row gets one of these, by its own held-out loss.
RATES = (1e-3, 2e-3, 4e-3)
ENCODER = {
    "layers": 2,
    "width": 128,
    "heads": 4,
    "feedforward": 512,
    "max_positions": SEQ_LEN,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "init_stddev": 0.06,
}
# The ends that meet are not cut, each epoch pairs the text in another way, and labels are even (docs/results/tiny.md).
_WHOLE = {"short_seq_prob": 0.0}
_PAIRS = {"kind": "segment_pairs", "fewest": 2, "trim": "outer_ends"} | _WHOLE
_PLANS = 8


class Row(NamedTuple):
    """What a row changes.

    Attributes:
      tasks: {name: task}.
      model: settings beside `ENCODER`.
      stages: settings of each stage; `share` is its share of the steps, an equal one if it is left out.
      optimizer: further settings of the optimizer.
      rate_of: the row whose learning rate it has; empty for a row that chooses its own.
    """

    tasks: dict[str, dict[str, Any]]
    model: dict[str, Any] = {}
    stages: tuple[dict[str, Any], ...] = ({},)
    optimizer: dict[str, Any] = {}
    rate_of: str = ""


def task(objective: str, examples: str | dict = "full_sentences", masking: dict | None = None, **choices) -> dict:
    """Return a task on rows of one example; pairs have several plans."""
    kind = {"kind": objective} | choices | ({"masking": masking} if masking else {})
    examples = {"kind": examples} if isinstance(examples, str) else examples
    plans = _PLANS if "short_seq_prob" in examples or examples["kind"] == "sentence_pairs" else 1
    return {"objective": kind, "examples": examples, "row_examples": 1, "plans": plans}


def _whole(kind: str) -> dict[str, Any]:
    return {"kind": kind} | _WHOLE


def _albert(objective: str = "sentence_order", examples: dict | None = None, **model) -> Row:
    tasks = {"albert": task(objective, examples or _whole("sentence_order"), {"kind": "ngrams"})}
    return Row(tasks, {"sharing": "all", "embeddings": {"width": 64}} | model)


def _electra(generator_share: float) -> Row:
    masking = {"mask": 1.0, "random": 0.0}
    return Row({"electra": task("electra", masking=masking, generator_share=generator_share)})


MLM = {"mlm": task("mlm")}
_NO_SEGMENTS = {"embeddings": {"segments": 0, "position_offset": 2}}
_PHRASES, _ENTITIES = {"kind": "phrases"}, {"kind": "phrases", "lexicon_size": 10_000}
_ERNIE = {
    "tokens": task("bert", _PAIRS),
    "phrases": task("bert", _PAIRS, _PHRASES),
    "entities": task("bert", _PAIRS, _ENTITIES),
}
_ERNIE_2 = {
    "knowledge": task("mlm", "doc_sentences", _PHRASES),
    "capitals": task("capitals", "doc_sentences", _PHRASES),
    "document": task("token_document", "token_document", _PHRASES),
    "reordering": task("sentence_reordering", "sentence_reordering", _PHRASES),
    "distance": task("sentence_distance", {"kind": "sentence_distance", "trim": "outer_ends"} | _WHOLE, _PHRASES),
}
ROWS: dict[str, Row] = {
    "bert": Row({"bert": task("bert", _PAIRS)}),
    "mlm": Row(MLM),
    "causal": Row({"causal": task("causal")}, {"direction": "left_to_right"}),
    "roberta": Row(MLM, _NO_SEGMENTS),
    "albert": _albert(),
    # A quarter, as in ELECTRA-Small, would be a generator of width 32; figure 3 of the paper compares up to the whole.
    "electra": _electra(0.5),
    # The discriminator starts from an encoder that reads neighbors already. The generator has its width, because both
    # tasks have one masked language model head.
    "electra-after-mlm": Row(
        {
            "mlm": task("mlm", _PAIRS),
            "electra": task("electra", _PAIRS, {"mask": 1.0, "random": 0.0}, generator_share=1.0, generator_depth=0.5),
        },
        stages=({"tasks": ["mlm"]}, {"tasks": ["electra"]}),
        rate_of="electra",
    ),
    # Sentence order alike: for an encoder that reads neighbors already.
    "order-after-mlm": Row(
        {"mlm": task("mlm", _PAIRS), "order": task("sentence_order", _whole("sentence_order"))},
        stages=({"tasks": ["mlm"]}, {"tasks": ["order"]}),
        rate_of="bert",
    ),
    "spanbert": Row({"spanbert": task("span_boundary", "doc_sentences", {"kind": "spans"}, longest=15)}),
    "ernie": Row(_ERNIE, stages=tuple({"tasks": [name]} for name in _ERNIE)),
    "ernie2": Row(
        {name: _ERNIE_2[name] | {"task_type": number} for number, name in enumerate(_ERNIE_2)},
        {"embeddings": {"task_types": len(_ERNIE_2)}},
        tuple({"tasks": list(_ERNIE_2)[: count + 1]} for count in range(len(_ERNIE_2))),
    ),
    "structbert": Row({"structbert": task("structbert", _whole("sentence_structure"))}),
    "xlnet": Row(
        {
            "xlnet": task(
                "permutation", masking={"kind": "ngrams", "longest": 5, "rate": 1 / 6, "mask": 0.0, "random": 0.0}
            )
        },
        {"embeddings": {"kind": "xlnet"}, "block": {"kind": "xlnet"}},
    ),
    # The published steps at full depth are 70% of all; moments start again at a doubling.
    "stacking": Row(MLM, {}, ({"layers": 1, "share": 0.3}, {"layers": 2, "share": 0.7}), {"grow_moments": "reset"}),
    "modern": Row(
        {"mlm": task("mlm", "doc_sentences", {"rate": 0.3})},
        {
            "block": {"kind": "modern", "window": 4, "global_every": 2, "rotary_base": 10_000.0},
            "embeddings": {"positions": "none", "segments": 0},
        }
        | {"feedforward": 344},
    ),
    "deberta": Row(
        {"mlm": task("mlm", "doc_sentences")},
        {"block": {"kind": "deberta"}, "embeddings": {"positions": "none", "segments": 0}},
    ),
    "diffusion": Row({"diffusion": task("diffusion")}),
    "muon": Row(MLM, optimizer={"kind": "muon"}),
}
# Every second layer of this row is the student's at the start, and it imitates the whole.
TEACHER, STUDENT = "mlm", "distilbert"
NAMES = (*ROWS, STUDENT)
_ALONE = {"kind": "sentence_pairs"}
ABLATIONS: dict[str, Row] = {
    # Input formats with and without next-sentence prediction (Liu et al., 2019, section 4.2, table 2).
    "segment-pairs": Row({"mlm": task("mlm", _PAIRS)}, rate_of="bert"),
    "sentence-pairs-nsp": Row({"bert": task("bert", _ALONE)}, rate_of="bert"),
    "sentence-pairs": Row({"mlm": task("mlm", _ALONE)}, rate_of="bert"),
    "doc-sentences": Row({"mlm": task("mlm", "doc_sentences")}, rate_of="mlm"),
    # The same masks in every epoch (section 4.1); BERT's ten duplicates would not repeat within these runs.
    "static-masks": Row({"mlm": task("mlm", masking={"static": 1})}, rate_of="mlm"),
    # Lan et al. (2020), tables 3, 4 and 5; the embeddings of the row `albert` are 64 wide.
    "albert-embedding-32": _albert(embeddings={"width": 32})._replace(rate_of="albert"),
    "albert-embedding-128": _albert(embeddings={"width": 128})._replace(rate_of="albert"),
    "albert-share-attention": _albert(sharing="attention")._replace(rate_of="albert"),
    "albert-share-feedforward": _albert(sharing="feedforward")._replace(rate_of="albert"),
    "albert-share-none": _albert(sharing="none")._replace(rate_of="albert"),
    "albert-nsp": _albert("bert", _PAIRS)._replace(rate_of="albert"),
    "albert-none": _albert("mlm", {"kind": "doc_sentences"})._replace(rate_of="albert"),
    # Clark et al. (2020), figure 3; what its table 5 needs beyond settings is in docs/results/family_findings.md.
    "electra-generator-quarter": _electra(0.25)._replace(rate_of="electra"),
    "electra-generator-whole": _electra(1.0)._replace(rate_of="electra"),
}


def student_tasks(teacher: str) -> dict[str, dict[str, Any]]:
    """Return the task of the student of an export."""
    losses = {"soft": {"kind": "token_logits", "temperature": 2.0, "factor": 5.0}, "cosine": {"kind": "output"}}
    taught = task("mlm")
    distilled = {"kind": "distilled", "objective": taught["objective"], "own_factor": 2.0, "losses": losses}
    return {STUDENT: taught | {"objective": distilled | {"teacher": teacher}}}


def get_config(variant: str = TEACHER) -> ml_collections.ConfigDict:
    name, steps, rate, teacher = (*variant.split(",", 3), "", "", "")[:4]
    steps, config = int(steps or STEPS), ml_collections.ConfigDict()
    if name == STUDENT:
        layers = ENCODER["layers"]
        config.init_from, config.init_layers = teacher, tuple(range(0, layers, 2))
        config.model = {"preset": "init_from", "layers": layers // 2, "embeddings": {"segments": 0}}
        row = Row(student_tasks(teacher))
    elif row := (ROWS | ABLATIONS).get(name):
        config.model = ENCODER | row.model
    else:
        raise ValueError(f"unknown variant {name!r}; choose one of {', '.join([*NAMES, *ABLATIONS])}")
    config.tasks = row.tasks
    config.data = {"corpus": "embedded:en", "tokenizer": {"vocab_size": 4000}}
    config.optimizer = {"learning_rate": float(rate or RATES[1]), "warmup_share": 0.1, "b2": 0.98} | row.optimizer
    config.stages = _stages(row.stages, steps)
    config.eval = {"every": 0, "samples": 0}
    config.runtime = {"unroll": True, "log_every": 50, "save_every": 1000}
    return config


def _stages(stages: tuple[dict[str, Any], ...], steps: int) -> list[dict[str, Any]]:
    shares = [stage.get("share", 1 / len(stages)) for stage in stages]
    edges = [round(steps * sum(shares[:index])) for index in range(len(stages) + 1)]
    return [
        {"steps": stop - start, "seq_len": SEQ_LEN, "batch": BATCH}
        | {name: value for name, value in stage.items() if name != "share"}
        for start, stop, stage in zip(edges, edges[1:], stages)
    ]
