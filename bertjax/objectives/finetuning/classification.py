"""Classification of sentences and of pairs (Devlin et al., 2019, section 4.1; arXiv 1810.04805)."""

import dataclasses
from typing import ClassVar

import jax

from bertjax.errors import UserError
from bertjax.objectives.finetuning.base import (
    ExampleObjective,
    class_probabilities,
    majority_accuracy,
    without_location,
)
from bertjax.objectives.losses import classification_term
from bertjax.objectives.outputs import Output

METRICS = ("accuracy", "f1", "matthews")


@dataclasses.dataclass(frozen=True)
class Classification(ExampleObjective):
    """Predicts one of several classes. Terms: `classification`.

    With two classes, F1 is that of the second one (MRPC's and QQP's `1`); with more, it is the mean over the classes.

    Attributes:
      classes: see `Objective`.
      metric: metric that chooses the best checkpoint and compares seeds: `accuracy`, `f1` or `matthews`.
    """

    classes: tuple[str, ...] = ()
    metric: str = "accuracy"
    term: ClassVar[str] = "classification"

    def __post_init__(self):
        super().__post_init__()
        if self.metric not in METRICS:
            raise UserError(f"objective.metric={self.metric!r} is unknown; choose one of {', '.join(METRICS)}")

    @property
    def best_metric(self) -> str:
        return self.metric

    @property
    def num_outputs(self) -> int:
        return len(self.classes)

    def terms_of(self, logits, batch):
        weights_BN = batch["weights_BN"]
        loss, correct = classification_term(logits, batch["labels_BN"], weights_BN)
        return {self.term: loss}, {"accuracy": (correct, weights_BN.sum())}

    def outputs(self, model, params, batch, taps=None):
        """`probabilities`, of the classes."""
        return {"probabilities": Output(jax.nn.softmax(self.apply(model, params, batch, taps=taps)), per="example")}

    def baselines(self, batch, token_counts):
        """Always predicting the most frequent class of the training file."""
        return majority_accuracy(batch["labels_BN"][batch["weights_BN"] > 0], token_counts)

    def score(self, outputs, examples, records):
        from sklearn.metrics import f1_score, matthews_corrcoef

        labels, guesses = examples.labels["label"], outputs["probabilities"].argmax(axis=-1)
        average = "binary" if len(self.classes) == 2 else "macro"
        return {
            "f1": float(f1_score(labels, guesses, average=average, zero_division=0.0)),
            "matthews": float(matthews_corrcoef(labels, guesses)),
        }

    def predictions(self, outputs, examples, records):
        """Return each record with `prediction`, a class, and `probabilities`, {class: probability}."""
        return [
            without_location(record) | class_probabilities(self.classes, probabilities_C)
            for record, probabilities_C in zip(records, outputs["probabilities"], strict=True)
        ]
