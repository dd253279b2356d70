"""Fine-tuned heads in transformers: their tensors, and what `config.json` says of their classes and labels.

A head of bertjax is one dense layer. It reads the hidden state of every token, or the pooled [CLS] of an example. In
some families the pooler belongs to the head: it is `classifier.dense` of a RoBERTa and `pre_classifier` of a
DistilBERT. Their activations differ (`EncoderConfig.pooler_activation`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.data.labeled.questions import Questions
from bertjax.errors import UserError, quoted
from bertjax.interop import names
from bertjax.interop.names import ENCODER_ONLY, Name

CLASSIFICATION, MULTI_LABEL, REGRESSION, TAGGING = "classification", "multi_label", "regression", "tagging"
SPAN, CHOICE = "span", "multiple_choice"
SEQUENCE, TOKENS, QUESTIONS, CHOICES = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
# The objective that trains a head, by the name of the head, and examples that such a model predicts from.
_TRAINED_BY = {
    CLASSIFICATION: ("classification", {"kind": "labeled_text"}),
    MULTI_LABEL: ("multi_label", {"kind": "label_sets"}),
    REGRESSION: ("regression", {"kind": "labeled_text"}),
    TAGGING: ("tagging", {"kind": "tagged"}),
    SPAN: ("question_answering", {"kind": "questions"}),
    CHOICE: ("multiple_choice", {"kind": "choices"}),
}
TERMS = tuple(_TRAINED_BY)
CLS = "cls"  # `objective.pooling` of the classes of transformers
# Value of `problem_type`, by which transformers chooses a loss and a pipeline its scores.
_PROBLEMS = {
    CLASSIFICATION: "single_label_classification",
    MULTI_LABEL: "multi_label_classification",
    REGRESSION: "regression",
}
# What a `CrossEncoder` of sentence-transformers applies to its logits, as its versions store it. Without it one logit
# gets a sigmoid, as in the pipeline of transformers unless `problem_type` is `regression`.
_CROSS_ENCODER = "sentence_transformers"
_OLDER_CROSS_ENCODER = "sbert_ce_default_activation_function"
_ACTIVATION_FUNCTIONS = {
    "identity": "torch.nn.modules.linear.Identity",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
}
# Objectives whose logits belong to names.
_NAMED = (CLASSIFICATION, MULTI_LABEL, TAGGING)
PIPELINES = {
    CLASSIFICATION: "text-classification",
    MULTI_LABEL: "text-classification",
    REGRESSION: "text-classification",
    TAGGING: "token-classification",
}


@dataclasses.dataclass(frozen=True)
class TaskHead:
    """A fine-tuned head in the classes of one family.

    Attributes:
      suffix: end of the name of the class that has it.
      logits: stem of the names of the dense layer that computes the logits.
      pooler: stem of the names of the dense layer before it; empty if the head reads the state of every token.
      settings: {key of `config.json`: (the value with which the class computes what bertjax does, the default)}.
    """

    suffix: str
    logits: str
    pooler: str = ""
    settings: Mapping[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)

    def names(self, term: str) -> tuple[Name, ...]:
        """Return the tensor names of the head, with its pooler."""
        pooler = names.dense(self.pooler, "encoder/pooler") if self.pooler else ()
        return (*pooler, *names.dense(self.logits, f"heads/{term}"))

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise UserError if a `config.json` makes the class compute something else."""
        for key, (value, default) in self.settings.items():
            if (other := config.get(key, default)) != value:
                raise UserError(
                    f"config.json has {key}={quoted(other)}, and bertjax's head computes {value!r} only; {ENCODER_ONLY}"
                )


def task_heads(sequence: TaskHead, choice: TaskHead, questions: str = QUESTIONS) -> Mapping[str, TaskHead]:
    """Return the heads of a family by their names in bertjax.

    Args:
      sequence: the head that classifies an example, or predicts a number for it.
      choice: the head that scores a choice.
      questions: end of the name of the class that answers questions.
    """
    return {
        CLASSIFICATION: sequence,
        MULTI_LABEL: sequence,
        REGRESSION: sequence,
        TAGGING: TaskHead(TOKENS, "classifier"),
        SPAN: TaskHead(questions, "qa_outputs"),
        CHOICE: choice,
    }


def settings_of(export_settings: Mapping[str, Any], term: str) -> dict[str, Any]:
    """Return what `config.json` says of the labels of a fine-tuned head.

    Args:
      export_settings: the configuration of the run that trained it.
      term: name of the head.

    Raises:
      UserError: the objective reads something else than the classes of transformers do.
    """
    objective = objective_of(export_settings, term)
    if (pooling := objective.get("pooling", CLS)) != CLS:
        raise UserError(
            f"the head {term} was trained with objective.pooling={pooling!r}, and the classes of transformers compute "
            f"{CLS!r} only; fine-tune with objective.pooling={CLS}, convert to ONNX, or {ENCODER_ONLY}"
        )
    labels = ["LABEL_0"] if term == REGRESSION else objective.get("classes", [])
    settings = {"problem_type": _PROBLEMS[term]} if term in _PROBLEMS else {}
    if term == SPAN:
        return settings  # the two logits are no labels
    if term == REGRESSION:
        activation = objective.get("activation", "identity")
        settings = settings if activation == "identity" else {}  # a pipeline applies the sigmoid without it
        settings |= of_cross_encoder(_ACTIVATION_FUNCTIONS[activation])
    return settings | {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def first_objective(export_settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the first objective of a model, which may be somebody else's; empty if it has none."""
    try:
        [task, *_] = export_settings["tasks"].values()
        return dict(task["objective"])
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def objective_of(export_settings: Mapping[str, Any], term: str) -> Mapping[str, Any]:
    """Return the settings of the objective that trained a head.

    Raises:
      UserError: it is not the objective of bertjax that trains such a head.
    """
    objective, kind = first_objective(export_settings), _TRAINED_BY[term][0]
    if objective.get("kind") != kind:
        raise UserError(
            f"the head {term} was trained by objective.kind={objective.get('kind')!r}, and other libraries have a head "
            f"only for that of {kind}; {ENCODER_ONLY}"
        )
    return objective


def notes_of(export_settings: Mapping[str, Any], term: str) -> list[str]:
    """Return a note for each setting of the objective that `config.json` has no key for."""
    threshold = objective_of(export_settings, term).get("threshold")
    if (term, threshold) == (MULTI_LABEL, 0.5) or term not in (SPAN, MULTI_LABEL) or threshold is None:
        return []
    return [f"objective.threshold={threshold} is not exported: pipelines of transformers have no such threshold"]


def term_of(heads: Mapping[str, TaskHead], stem: str, config: Mapping[str, Any]) -> str | None:
    """Return the name of the head in a checkpoint, or None if its class has no fine-tuned one.

    Args:
      heads: the heads of the family.
      stem: prefix of the names of the family's classes.
      config: its `config.json`.

    Raises:
      UserError: bertjax has no such head.
    """
    architecture = next(iter(config.get("architectures") or ()), "")
    terms = [term for term, head in heads.items() if architecture == stem + head.suffix]
    if terms != list(_PROBLEMS):
        return next(iter(terms), None)
    problem = config.get("problem_type")
    if problem in (None, _PROBLEMS[CLASSIFICATION]):
        return REGRESSION if _has_one_label(config) else CLASSIFICATION
    if problem not in _PROBLEMS.values():
        raise UserError(
            f"config.json has problem_type={quoted(problem)}; bertjax converts {' and '.join(_PROBLEMS.values())}; "
            f"{ENCODER_ONLY}"
        )
    return next(term for term, name in _PROBLEMS.items() if name == problem)


def task_of(config: Mapping[str, Any], term: str, outputs: int, longest: int) -> dict[str, Any]:
    """Return the settings of the task of a checkpoint with a fine-tuned head.

    Args:
      config: its `config.json`.
      term: name of the head.
      outputs: number of logits.
      longest: number of tokens of the longest example.

    Raises:
      UserError: the labels do not fit the logits.
    """
    kind, examples = _TRAINED_BY[term]
    labels = _labels(config)
    if labels is None:
        labels = [f"LABEL_{number}" for number in range(outputs if term in _NAMED else 2)]
    expected = 2 if term == SPAN else outputs if term in _NAMED else 1
    if outputs != expected:
        raise UserError(f"the head of {term} has {outputs} logits, and bertjax computes {expected}; add --encoder-only")
    objective = {"kind": kind}
    if term in _NAMED:
        if len(labels) != outputs or len(set(labels)) != outputs:
            raise UserError(
                f"config.json has {len(set(labels))} different labels in id2label, and the head has {outputs} logits; "
                "give each logit a label of its own"
            )
        objective["classes"] = labels
    if term == REGRESSION and config.get("problem_type") != _PROBLEMS[REGRESSION]:
        objective["activation"] = _activation_of(config)
    if term == CHOICE:
        objective["classes"] = [str(number) for number in range(len(labels))]
    if term == SPAN:
        defaults = Questions()
        lengths = {
            "stride": min(defaults.stride, longest // 2),
            "max_question": min(defaults.max_question, longest // 4),
        }
        examples = examples | lengths
    return {"objective": objective, "examples": dict(examples)}


def of_cross_encoder(activation: str) -> dict[str, Any]:
    """Return the part of a `config.json` that names the function that a cross-encoder applies to its logits."""
    return {_CROSS_ENCODER: {"activation_fn": activation}}


def _has_one_label(config: Mapping[str, Any]) -> bool:
    return len(_labels(config) or ()) == 1 or config.get("num_labels") == 1


def _activation_of(config: Mapping[str, Any]) -> str:
    """Return what turns the logit of a cross-encoder into its number.

    Raises:
      UserError: it is another function.
    """
    named = (config.get(_CROSS_ENCODER) or {}).get("activation_fn") or config.get(_OLDER_CROSS_ENCODER)
    name = str(named or "Sigmoid").rpartition(".")[2].lower()
    if name not in _ACTIVATION_FUNCTIONS:
        known = " and ".join(_ACTIVATION_FUNCTIONS)
        raise UserError(
            f"config.json has the activation {quoted(named)} of its logit; bertjax has {known}; {ENCODER_ONLY}"
        )
    return name


def outputs_of(tensors: Mapping[str, np.ndarray], head: TaskHead) -> int:
    """Return the number of logits of the head in a checkpoint.

    Raises:
      UserError: the head is missing.
    """
    bias = tensors.get(f"{head.logits}.bias")
    if bias is None or bias.ndim != 1:
        raise UserError(
            f"the checkpoint lacks {head.logits}.bias, the head of its class; download it again, or {ENCODER_ONLY}"
        )
    return len(bias)


def _labels(config: Mapping[str, Any]) -> list[str] | None:
    """Return the labels of `id2label` in the order of their numbers; None if there are none."""
    if not (labels := config.get("id2label")):
        return None
    if sorted(map(int, labels)) != list(range(len(labels))):
        raise UserError(f"config.json has id2label for {quoted(list(labels))}; number the labels from 0 without a gap")
    return [str(label) for _, label in sorted(labels.items(), key=lambda item: int(item[0]))]
