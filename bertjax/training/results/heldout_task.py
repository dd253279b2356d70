"""What a held-out metric measures. Two runs are compared by a metric only if they are asked the same questions.

A model that predicts 40% of the tokens has less to go by than one that predicts 15%, and a token of a vocabulary of
30,000 is harder to guess than one of 8,000. So every setting counts as part of the question, except for those that are
listed below: they change what is trained, and not what is scored.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from bertjax.typed import differences

# Objectives with the same term `mlm`: masked tokens of the text as it is. What they predict beside it has other names.
MASKED_TOKENS = frozenset(
    "mlm bert distillation sentence_order sentence_structure sentence_distance sentence_reordering span_boundary "
    "token_document".split()
)
# Their loss and accuracy compare the texts of a batch with each other, so a larger batch is a harder question.
_COMPARE_WITHIN_BATCH = ("embedding_contrastive", "embedding_simcse")

# Settings of an objective: the teacher, how a head reads states, how often one text is masked alike. By convention
# names that end in `coefficient` or `factor` weigh the terms of the loss, also in objectives from outside of bertjax.
_TRAINING_OBJECTIVE = ("teacher", "teacher_losses", "own_factor", "replacing", "soft_on", "pooling", "reads", "metric")
_WEIGHTS = ("coefficient", "factor")
_TRAINING_MASKING = ("static",)
# Settings of labeled files that choose training records, or what a model reads of a record, and not its label.
_TRAINING_RECORDS = ("train", "limit", "limit_seed", "unlabeled", "on_bad_record")
_INPUTS = ("kind", "max_tokens", "text", "pair", "context", "question", "quoted", "comment", "stride", "max_question")
# Settings of `data` that do not change the held-out text: which training text is used, how often, and where copies are.
_TRAINING_DATA = ("share", "smoothing", "on_bad_document", "store", "cache_dir", "workers", "overfit")
# Names of files. They count only if the fingerprints of the data differ: a file may be moved.
_PLACES = ("corpus", "heldout")


@dataclasses.dataclass(frozen=True)
class HeldoutTask:
    """The question that a metric of a run answers.

    Attributes:
      settings: the settings that are part of it, nested, by names relative to the task: `objective.masking.rate`.
      places: names of the files that it is read from.
      training: settings that change the fingerprint, but only through the training data.
      fingerprint: of all data of the run.
    """

    settings: Mapping[str, Any]
    places: Mapping[str, Any]
    training: Mapping[str, Any]
    fingerprint: str

    def changes(self, other: "HeldoutTask") -> list[str]:
        """Return where another question differs, as `objective.masking.rate: 0.15 -> 0.4`; empty if it is the same."""
        changes = differences(self.settings, other.settings)
        if self.fingerprint == other.fingerprint:
            return changes
        moved = differences(self.places, other.places)
        if not changes and not moved and self.training == other.training:
            return differences(self.fingerprint, other.fingerprint, "data.store_fingerprint")
        return changes + moved


def heldout_task(settings: Mapping[str, Any], identity: Mapping[str, Any], metric: str) -> HeldoutTask:
    """Return what a metric of a run measures.

    Args:
      settings: the configuration of the run as plain dicts.
      identity: its identity, with the fingerprint of its data.
      metric: a metric of held-out rows; in a mixture it starts with the name of its task.
    """
    tasks = settings["tasks"]
    first, *rest = metric.split("/")
    task, name = (first, rest) if len(tasks) > 1 and first in tasks else (next(iter(tasks)), [first, *rest])
    objective, examples, data = tasks[task]["objective"], tasks[task]["examples"], settings["data"]
    last = next(stage for stage in reversed(settings["stages"]) if not stage["tasks"] or task in stage["tasks"])
    common = {"eval": {part: settings["eval"].get(part) for part in ("seed", "rows")}}
    fingerprint = identity.get("data", {}).get("store_fingerprint", "")
    if objective.get("kind") in _COMPARE_WITHIN_BATCH and name[-1].endswith(("loss", "accuracy")):
        common |= {"batch": last["batch"]}
    if "train" in examples:  # a labeled file
        own = _of_objective(objective, name[-1]) if name[-1].endswith("_loss") else _classes(objective)
        further = examples.get("further_heldout") or {}
        place = further.get(name[0], examples["heldout"]) if len(name) > 1 else examples["heldout"]
        labels = _without(examples, (*_TRAINING_RECORDS, *_INPUTS, "heldout", "further_heldout"))
        training = {part: examples.get(part) for part in _TRAINING_RECORDS}
        # Whatever its tokenizer is, a model answers the same questions about the same records.
        training["tokenizer"] = data["tokenizer"]
        return HeldoutTask(
            common | {"objective": own, "examples": labels}, {"examples": {"heldout": place}}, training, fingerprint
        )
    sources = {source: _without(each, ("corpus", "weight", "token_share")) for source, each in data["sources"].items()}
    tokenizer = _tokenizer(data["tokenizer"])
    text = _without(data, (*_TRAINING_DATA, *_PLACES)) | {"sources": sources, "tokenizer": tokenizer}
    places = {part: data[part] for part in _PLACES} | {"tokenizer": {"model": data["tokenizer"]["model"]}}
    places["sources"] = {source: each["corpus"] for source, each in data["sources"].items()}
    return HeldoutTask(
        common
        | {"seq_len": last["seq_len"], "objective": _of_objective(objective, name[-1]), "examples": examples}
        | {"data": text},
        {"data": places},
        {"share": data["share"]},
        fingerprint,
    )


def _of_objective(objective: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Return the settings of an objective that a metric of its rows depends on."""
    kind, masking = objective["kind"], objective.get("masking")
    if masking is not None:
        masking = _without(masking, _TRAINING_MASKING)
    if kind in MASKED_TOKENS and metric.startswith("mlm_"):
        return {"masking": masking}
    own = {name: value for name, value in objective.items() if not name.endswith(_WEIGHTS)}
    own = _without(own, _TRAINING_OBJECTIVE) | ({"masking": masking} if masking is not None else {})
    term = metric.removesuffix("_loss")
    if term in (objective.get("teacher_losses") or {}) or (kind == "distillation" and term in ("soft", "cosine")):
        own |= {name: objective[name] for name in ("teacher", "teacher_losses")}
    if metric.startswith("generator_"):  # ELECTRA's generator predicts masked tokens, whatever its size
        own.pop("generator_share", None)
    return own


def _classes(objective: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a score of records depends on: the registered objectives predict the labels of the file."""
    if ":" in objective["kind"]:
        return _of_objective(objective, "")
    return {"classes": objective["classes"]} if "classes" in objective else {}


def _tokenizer(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are read: those of a new tokenizer, unless a trained one is named."""
    return {} if tokenizer["model"] else _without(tokenizer, ("model", "keep_file"))


def _without(settings: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}
