"""The question behind a held-out metric. Two runs are comparable only if they answer the same question.

Masking 40% instead of 15% leaves less context, and a token is harder to guess among 30,000 than among 8,000. So every
setting is part of the question unless its field has a mark (`bertjax.runtime.setting`): those affect only training.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from bertjax.config.typed import differences
from bertjax.data.config import DataConfig, SourceConfig
from bertjax.data.formats import FORMATS
from bertjax.data.masking import MASKINGS
from bertjax.data.tokenizer_config import TokenizerConfig
from bertjax.objectives.base import OBJECTIVES
from bertjax.runtime.setting import FREE, OF_INPUT, PLACE, TRAINING_ONLY, marked

# Objectives with an equivalent `mlm` term: masked tokens in unmodified text. Their other predictions have other names.
MASKED_TOKENS = frozenset(
    "mlm bert sentence_order sentence_structure sentence_distance sentence_reordering span_boundary "
    "token_document".split()
)
# These compare texts within a batch, so a larger batch makes the question harder.
_COMPARE_WITHIN_BATCH = ("embedding_contrastive", "embedding_simcse")

_SCORES = frozenset("accuracy f1 macro_f1 exact_match matthews pearson spearman".split())
# By convention, names that end in `coefficient` or `factor` are loss weights, also in objectives from outside bertjax.
_WEIGHTS = ("coefficient", "factor")
# Metric of teacher losses; with two of them it has the name of its loss as a prefix.
_AGREEMENT = "agreement"


class HeldoutTask(NamedTuple):
    """The question that one metric in a run answers.

    Attributes:
      settings: nested settings that define the question, named relative to the task: `objective.masking.rate`.
      places: file names.
      training: settings that affect the fingerprint only through training data.
      fingerprint: fingerprint over all data in the run.
    """

    settings: Mapping[str, Any]
    places: Mapping[str, Any]
    training: Mapping[str, Any]
    fingerprint: str

    def changes(self, other: "HeldoutTask") -> list[str]:
        """List differences as `objective.masking.rate: 0.15 -> 0.4`; empty if the question is the same."""
        changes = differences(self.settings, other.settings)
        # Equal data fingerprints prove equal text, whatever the files are called.
        if self.fingerprint == other.fingerprint:
            return changes
        moved = differences(self.places, other.places)
        # Nothing explains the different data: name the fingerprints themselves.
        if not changes and not moved and self.training == other.training:
            return differences(self.fingerprint, other.fingerprint, "data.store_fingerprint")
        return changes + moved


def heldout_task(settings: Mapping[str, Any], identity: Mapping[str, Any], metric: str) -> HeldoutTask:
    """Return the question that a held-out metric answers.

    Args:
      settings: the run's configuration as plain dicts.
      identity: the run's identity, which includes the data fingerprint.
      metric: metric name, prefixed by the task in a mixture.
    """
    tasks = settings["tasks"]
    first, *rest = metric.split("/")
    task, name = (first, rest) if len(tasks) > 1 and first in tasks else (next(iter(tasks)), [first, *rest])
    objective, examples, data = tasks[task]["objective"], tasks[task]["examples"], settings["data"]
    teaching: Mapping[str, Any] = {}
    if "objective" in objective:  # with a teacher, see `bertjax.objectives.wrapper`
        objective, teaching = objective["objective"], objective
    question, *own_heads = identity.get("questions", {}).get(task, [""])
    # Metrics of its own heads, and other scores of records than those whose names say what they are, are its own.
    is_own = name[-1] not in _SCORES if "train" in examples else name[-1].startswith(tuple(f"{x}_" for x in own_heads))
    if question and not is_own:
        objective = _as_asked(objective, question)
    # Evaluations use the row length of the last stage that trains the task.
    last = next(stage for stage in reversed(settings["stages"]) if not stage["tasks"] or task in stage["tasks"])
    common = {"eval": {part: settings["eval"].get(part) for part in ("seed", "rows")}}
    fingerprint = identity.get("data", {}).get("store_fingerprint", "")
    if objective.get("kind") in _COMPARE_WITHIN_BATCH and name[-1].endswith(("loss", "accuracy")):
        common |= {"batch": last["batch"]}
    of_teacher, prefixes = {}, tuple(f"{loss}_" for loss in teaching.get("losses", {}))
    # Losses, and their metrics (`Distilled.terms`), depend on which teacher it is.
    if teaching and (name[-1] == _AGREEMENT or name[-1].startswith(prefixes)):
        of_teacher = {part: teaching[part] for part in ("teacher", "losses") if part in teaching}
    if "train" in examples:  # a labeled file
        own = _of_objective(objective, name[-1]) if name[-1].endswith("_loss") else _classes(objective)
        further = examples.get("further_heldout") or {}
        place = further.get(name[0], examples["heldout"]) if len(name) > 1 else examples["heldout"]
        if isinstance(place, float):
            place = [examples["train"], place]
        labels = _without(examples, {"kind", *FORMATS.marked(PLACE, TRAINING_ONLY, OF_INPUT)})
        training = {part: examples.get(part) for part in sorted(FORMATS.marked(TRAINING_ONLY))}
        # Records are the unit here: the same question for every tokenizer.
        training["tokenizer"] = data["tokenizer"]
        return HeldoutTask(
            common | {"objective": own | of_teacher, "examples": labels},
            {"examples": {"heldout": place}},
            training,
            fingerprint,
        )
    of_sources = marked(SourceConfig, PLACE, TRAINING_ONLY)
    sources = {source: _without(each, of_sources) for source, each in data["sources"].items()}
    # A trained tokenizer has no other settings in effect.
    tokenizer = {} if data["tokenizer"]["model"] else _without(data["tokenizer"], marked(TokenizerConfig, PLACE))
    text = _without(data, marked(DataConfig, PLACE, FREE, TRAINING_ONLY))
    text |= {"sources": sources, "tokenizer": tokenizer}
    # File names count only if data fingerprints differ, because a file may have moved.
    places = {part: data[part] for part in marked(DataConfig, PLACE) if part not in marked(DataConfig, FREE)}
    places["tokenizer"] = {"model": data["tokenizer"]["model"]}
    places["sources"] = {source: each["corpus"] for source, each in data["sources"].items()}
    return HeldoutTask(
        common
        | {"seq_len": last["seq_len"], "objective": _of_objective(objective, name[-1]) | of_teacher}
        | {"examples": examples, "data": text},
        {"data": places},
        {"share": data["share"]},
        fingerprint,
    )


def _as_asked(objective: Mapping[str, Any], question: str) -> Mapping[str, Any]:
    """Return an own objective's settings as those of the kind whose question it answers (`question_of`)."""
    names = {field.name for field in dataclasses.fields(OBJECTIVES.class_of(question))}
    return {name: value for name, value in objective.items() if name in names} | {"kind": question}


def _of_objective(objective: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Return the objective settings that a metric depends on."""
    kind, masking = objective["kind"], objective.get("masking")
    if masking is not None:
        masking = _without(masking, MASKINGS.marked(TRAINING_ONLY))
    # These objectives may differ in all else: their `mlm_` metrics answer the same question.
    if kind in MASKED_TOKENS and metric.startswith("mlm_"):
        return {"masking": masking}
    own = {name: value for name, value in objective.items() if not name.endswith(_WEIGHTS)}
    own = _without(own, OBJECTIVES.marked(TRAINING_ONLY)) | ({"masking": masking} if masking is not None else {})
    if metric.startswith("generator_"):  # the generator's size does not change what it must predict
        for name in ("generator_share", "generator_depth", "embedding_sharing"):
            own.pop(name, None)
    return own


def _classes(objective: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that record scores depend on: registered objectives predict the file's labels."""
    if ":" in objective["kind"]:
        return _of_objective(objective, "")
    return {"classes": objective["classes"]} if "classes" in objective else {}


def _without(settings: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}
