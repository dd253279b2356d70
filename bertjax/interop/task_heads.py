"""Fine-tuned heads in transformers: tensor names, and classes and labels in `config.json`.

In bertjax a head is one dense layer, on every token's hidden state or on an example's pooled [CLS]. Some families count
the pooler as part of the head: it is `classifier.dense` in RoBERTa and `pre_classifier` in DistilBERT. The pooler's
activation differs by family (`EncoderConfig.pooler_activation`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.config.export import Export
from bertjax.data.labeled.questions import Questions
from bertjax.interop import names
from bertjax.interop.foreign_settings import config_error
from bertjax.interop.names import ENCODER_ONLY, Name
from bertjax.runtime.errors import UserError

CLASSIFICATION, MULTI_LABEL, REGRESSION, TAGGING = "classification", "multi_label", "regression", "tagging"
SPAN, CHOICE = "span", "multiple_choice"
SEQUENCE, TOKENS = "ForSequenceClassification", "ForTokenClassification"
QUESTIONS, CHOICES = "ForQuestionAnswering", "ForMultipleChoice"
# {head: the kind of examples that it predicts from}
_EXAMPLES = {CLASSIFICATION: "labeled_text", MULTI_LABEL: "label_sets", REGRESSION: "labeled_text"}
_EXAMPLES |= {TAGGING: "tagged", SPAN: "questions", CHOICE: "choices"}
# {head: the objective that trains it}
_TRAINED_BY = {term: "question_answering" if term == SPAN else term for term in _EXAMPLES}
TERMS = tuple(_EXAMPLES)
ON_TOKENS = TAGGING, SPAN  # heads that read the state of each token
ON_EXAMPLES = CLASSIFICATION, MULTI_LABEL, REGRESSION  # heads that read one vector per text
CLS, MEAN, LATE = "cls", "mean", "late"  # `objective.pooling`; most classes of transformers compute the first only
# Values of `problem_type`, by which transformers chooses the loss and a pipeline the activation of its scores.
_PROBLEMS = {
    CLASSIFICATION: "single_label_classification",
    MULTI_LABEL: "multi_label_classification",
    REGRESSION: "regression",
}
# Keys under which versions of sentence-transformers store a `CrossEncoder`'s activation. Without a key a single logit
# gets a sigmoid. So it does in transformers' pipeline, unless `problem_type` is `regression`.
_CROSS_ENCODER = "sentence_transformers"
_OLDER_CROSS_ENCODER = "sbert_ce_default_activation_function"
ACTIVATION_FUNCTIONS = {
    "identity": "torch.nn.modules.linear.Identity",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
}
# Heads whose logits stand for named classes.
_NAMED = (CLASSIFICATION, MULTI_LABEL, TAGGING)
PIPELINES = dict.fromkeys(ON_EXAMPLES, "text-classification") | {TAGGING: "token-classification"}


@dataclasses.dataclass(frozen=True)
class TaskHead:
    """A fine-tuned head in one family's classes.

    Attributes:
      logits: tensor name, without `.weight` or `.bias`, of the dense layer that computes the logits.
      pooler: the same for the dense layer before it; empty if the head reads every token's state.
      own: the same for a layer that the head has beside the pooler (`HiddenLayerHead`); empty for none.
      norm: the same for the norm after that one (`LabelHead`); empty for none.
      settings: {key of `config.json`: (the value that bertjax computes, the default in transformers)}.
      pooling: key of `config.json` for `objective.pooling`; empty if the class has only `cls`.
      poolings: {value of that key: value of `objective.pooling`}; the first one is the default in transformers.
      suffix: class-name suffix.
    """

    logits: str
    pooler: str = ""
    own: str = ""
    norm: str = ""
    settings: Mapping[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    pooling: str = ""
    poolings: Mapping[str, str] = dataclasses.field(default_factory=lambda: {CLS: CLS})
    suffix: str = SEQUENCE

    def names(self, term: str) -> tuple[Name, ...]:
        """Return the name table of the head and its pooler."""
        before = names.dense(self.pooler, "encoder/pooler") if self.pooler else ()
        if self.own:
            before = names.dense(self.own, f"heads/{term}/transform")
        norm = names.norm(self.norm, f"heads/{term}/norm") if self.norm else ()
        return (*before, *norm, *names.dense(self.logits, f"heads/{term}{'/classifier' * bool(self.own)}"))

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise UserError if a `config.json` asks for a head that bertjax does not compute."""
        for key, (value, default) in self.settings.items():
            if (other := config.get(key, default)) != value:
                raise config_error(key, other, f"bertjax's head computes {value!r} only; {ENCODER_ONLY}")
        self.pooling_of(config)

    def pooling_of(self, config: Mapping[str, Any]) -> str:
        """Return `objective.pooling` of a `config.json`.

        Raises:
          UserError: bertjax has no such pooling.
        """
        theirs = config.get(self.pooling, next(iter(self.poolings)))
        if theirs not in self.poolings:
            known = " and ".join(self.poolings)
            raise config_error(self.pooling, theirs, f"bertjax's head computes {known} only; {ENCODER_ONLY}")
        return self.poolings[theirs]


def task_heads(
    sequence: TaskHead, choice: TaskHead | None = None, questions: str = QUESTIONS
) -> Mapping[str, TaskHead]:
    """Return a family's heads by their names in bertjax.

    Args:
      sequence: head for classification and regression.
      choice: head for multiple choice; None for the same one.
      questions: class-name suffix for question answering.
    """
    return {
        CLASSIFICATION: sequence,
        MULTI_LABEL: sequence,
        REGRESSION: sequence,
        TAGGING: TaskHead("classifier", suffix=TOKENS),
        SPAN: TaskHead("qa_outputs", suffix=questions),
        CHOICE: dataclasses.replace(choice or sequence, suffix=CHOICES),
    }


def settings_of(export_settings: Mapping[str, Any], term: str, head: TaskHead) -> dict[str, Any]:
    """Return the `config.json` entries for a fine-tuned head: its problem type, labels and own settings.

    Args:
      export_settings: configuration of the run that trained it.
      term: name of the head.
      head: the head in the family's classes.

    Raises:
      UserError: the head pools differently from transformers' classes.
    """
    objective = objective_of(export_settings, term)
    settings = {key: value for key, (value, _) in head.settings.items()}
    pooling = objective.get("pooling", CLS)
    theirs = {ours: value for value, ours in head.poolings.items()}
    if pooling not in theirs:
        raise UserError(
            f"the head {term} has objective.pooling={pooling!r}, and transformers has only {' and '.join(theirs)}; "
            f"fine-tune with objective.pooling={CLS}, convert to ONNX, or {ENCODER_ONLY}"
        )
    if head.pooling:
        settings[head.pooling] = theirs[pooling]
    activation = objective.get("activation", "identity")
    if term == SPAN:
        return settings  # the two logits are no labels
    # Only without `problem_type` does a pipeline apply the sigmoid.
    if term in _PROBLEMS and activation == "identity":
        settings["problem_type"] = _PROBLEMS[term]
    if term == REGRESSION:
        settings |= of_cross_encoder(ACTIVATION_FUNCTIONS[activation])
    labels = names_of_logits(objective)
    return settings | {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def names_of_logits(objective: Mapping[str, Any]) -> list[str]:
    """Return the names of a head's logits, given its objective's settings."""
    return ["LABEL_0"] if objective.get("kind") == REGRESSION else list(objective.get("classes", []))


def first_objective(export_settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first objective's settings; empty if there is none, since untrusted settings may be malformed."""
    try:
        [task, *_] = export_settings["tasks"].values()
        return dict(task["objective"])
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def objective_of(export_settings: Mapping[str, Any], term: str) -> Mapping[str, Any]:
    """Return the settings of the objective that trained a head.

    Raises:
      UserError: another objective trained it, such as a user's own.
    """
    objective, kind = first_objective(export_settings), _TRAINED_BY[term]
    if (own := objective.get("kind")) != kind:
        raise UserError(
            f"the head {term} was trained by objective.kind={own!r}, and transformers has only {kind}; {ENCODER_ONLY}"
        )
    return objective


def with_temperature(export: Export) -> tuple[Export, list[str]]:
    """Divide the last layer of a classifier by its temperature, for which other libraries have no setting.

    Their softmax then gives calibrated probabilities (Guo et al., 2017, arXiv 1706.04599, section 4.2).

    Returns:
      The model without `objective.temperature`, and a note; the model itself and none if it has no temperature.
    """
    temperature = first_objective(export.settings).get("temperature")
    head = export.params.get("heads", {}).get(CLASSIFICATION)
    if temperature is None or head is None:
        return export, []
    [(name, task), *others] = export.settings["tasks"].items()
    objective = {key: value for key, value in task["objective"].items() if key != "temperature"}
    tasks = {name: task | {"objective": objective}, **dict(others)}
    # Families with a hidden layer in the head have the logits' layer in `classifier`.
    last = {key: array / np.float32(temperature) for key, array in head.get("classifier", head).items()}
    head = head | {"classifier": last} if "classifier" in head else last
    params = export.params | {"heads": export.params["heads"] | {CLASSIFICATION: head}}
    note = f"temperature {temperature:.4f}: the head's weights are divided by it, so its probabilities are calibrated"
    return export._replace(settings=export.settings | {"tasks": tasks}, params=params), [note]


def notes_of(export_settings: Mapping[str, Any], term: str) -> list[str]:
    """Return a note on the objective's threshold, for which `config.json` has no key."""
    threshold = objective_of(export_settings, term).get("threshold")
    if threshold is None or (term, threshold) == (MULTI_LABEL, 0.5):
        return []
    return [f"objective.threshold={threshold} is not exported: pipelines of transformers have no such threshold"]


def term_of(heads: Mapping[str, TaskHead], stem: str, config: Mapping[str, Any]) -> str | None:
    """Return a checkpoint's fine-tuned head by its name in bertjax, or None if its class has none.

    Args:
      heads: the heads of the family.
      stem: prefix of the family's class names.
      config: the checkpoint's `config.json`.

    Raises:
      UserError: bertjax has no such head.
    """
    architecture = next(iter(config.get("architectures") or ()), "")
    terms = [term for term, head in heads.items() if architecture == stem + head.suffix]
    # One class serves classification, label sets and regression; `problem_type` tells them apart.
    if terms != list(_PROBLEMS):
        return next(iter(terms), None)
    problem = config.get("problem_type") or _PROBLEMS[CLASSIFICATION]
    if problem not in _PROBLEMS.values():
        known = " and ".join(_PROBLEMS.values())
        raise config_error("problem_type", problem, f"bertjax converts {known}; {ENCODER_ONLY}")
    has_one_label = len(_labels(config) or ()) == 1 or config.get("num_labels") == 1
    term = next(term for term, name in _PROBLEMS.items() if name == problem)
    return REGRESSION if term == CLASSIFICATION and has_one_label else term


def task_of(config: Mapping[str, Any], term: str, head: TaskHead, outputs: int, longest: int) -> dict[str, Any]:
    """Return the task settings for a checkpoint with a fine-tuned head.

    Args:
      config: the checkpoint's `config.json`.
      term: name of the head.
      head: the head in the family's classes.
      outputs: number of logits.
      longest: maximum tokens per example.

    Raises:
      UserError: the labels do not fit the logits.
    """
    examples: dict[str, Any] = {"kind": _EXAMPLES[term]}
    labels = _labels(config)
    if labels is None:
        labels = [f"LABEL_{number}" for number in range(outputs if term in _NAMED else 2)]
    expected = 2 if term == SPAN else outputs if term in _NAMED else 1
    if outputs != expected:
        raise UserError(f"the head of {term} has {outputs} logits, and bertjax computes {expected}; add --encoder-only")
    objective: dict[str, Any] = {"kind": _TRAINED_BY[term]}
    if head.pooling and term not in ON_TOKENS:
        objective["pooling"] = head.pooling_of(config)
    if term in _NAMED:
        if len(labels) != outputs or len(set(labels)) != outputs:
            raise config_error("id2label", labels, f"the head has {outputs} logits; give each a label of its own")
        objective["classes"] = labels
    if term == REGRESSION and config.get("problem_type") != _PROBLEMS[REGRESSION]:
        objective["activation"] = _activation_of(config)
    if term == CHOICE:  # config.json does not have the number of choices, and transformers' default is 2 labels
        objective["classes"] = [str(number) for number in range(len(labels))]
    if term == SPAN:  # windows must fit the encoder, which may be shorter than the defaults assume
        defaults = Questions()
        examples["stride"] = min(defaults.stride, longest // 2)
        examples["max_question"] = min(defaults.max_question, longest // 4)
    return {"objective": objective, "examples": examples}


def of_cross_encoder(activation: str) -> dict[str, Any]:
    """Return the `config.json` entry for the activation that a cross-encoder applies to its logits."""
    return {_CROSS_ENCODER: {"activation_fn": activation}}


def _activation_of(config: Mapping[str, Any]) -> str:
    """Return the activation of a cross-encoder's logit, `identity` or `sigmoid`.

    Raises:
      UserError: it is another function.
    """
    named = (config.get(_CROSS_ENCODER) or {}).get("activation_fn") or config.get(_OLDER_CROSS_ENCODER)
    name = str(named or "Sigmoid").rpartition(".")[2].lower()
    if name not in ACTIVATION_FUNCTIONS:
        known = " and ".join(ACTIVATION_FUNCTIONS)
        raise config_error("activation_fn", named, f"bertjax has {known} for a logit; {ENCODER_ONLY}")
    return name


def outputs_of(tensors: Mapping[str, np.ndarray], head: TaskHead) -> int:
    """Return the number of logits of a checkpoint's head.

    Raises:
      UserError: the head is missing.
    """
    bias = tensors.get(f"{head.logits}.bias")
    if bias is None or bias.ndim != 1:
        raise UserError(f"the checkpoint lacks {head.logits}.bias, the head of its class; {ENCODER_ONLY}")
    return len(bias)


def _labels(config: Mapping[str, Any]) -> list[str] | None:
    """Return the labels in `id2label`, in numerical order; None if there are none."""
    if not (labels := config.get("id2label")):
        return None
    if sorted(map(int, labels)) != list(range(len(labels))):
        raise config_error("id2label", list(labels), "number the labels from 0 without a gap")
    if not all(label is not None and str(label).strip() for label in labels.values()):
        raise config_error("id2label", list(labels.values()), "give each label a name")
    return [str(label) for _, label in sorted(labels.items(), key=lambda item: int(item[0]))]
