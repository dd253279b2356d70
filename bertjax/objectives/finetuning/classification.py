"""Sentence and sentence-pair classification (Devlin et al., 2019, section 4.1; arXiv 1810.04805)."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.objectives.finetuning.base import (
    ExampleObjective,
    class_probabilities,
    majority_accuracy,
    record_scores,
    without_location,
)
from bertjax.objectives.losses import classification_term
from bertjax.objectives.outputs import Output
from bertjax.runtime.errors import UserError, shorten

METRICS = ("accuracy", "f1", "matthews")


@dataclasses.dataclass(frozen=True)
class Classification(ExampleObjective):
    """Predicts one of several classes. Terms: `classification`.

    With two classes, `f1` scores the second class (`1` in MRPC and QQP); with more classes it is the macro average.

    Attributes:
      classes: see `Objective`.
      metric: metric that selects the best checkpoint and compares seeds: `accuracy`, `f1` or `matthews`.
      label_smoothing: target probability that is spread evenly over all classes (Szegedy et al., 2016, arXiv
        1512.00567, section 7). Evaluation losses include it too.
      balanced: whether every class has the same total loss weight. A run turns it into `class_weights`.
      class_weights: loss weight per class, in the order of `classes`; 1 for all if empty.
    """

    classes: tuple[str, ...] = ()
    metric: str = "accuracy"
    label_smoothing: float = 0.0
    balanced: bool = False
    class_weights: tuple[float, ...] = ()
    term: ClassVar[str] = "classification"

    def __post_init__(self):
        super().__post_init__()
        if self.metric not in METRICS:
            raise UserError(f"objective.metric={self.metric!r} is unknown; choose one of {', '.join(METRICS)}")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UserError(f"objective.label_smoothing={self.label_smoothing} must be in [0, 1), such as 0.1")
        if self.class_weights and not min(self.class_weights) > 0.0:
            raise UserError(f"objective.class_weights has {min(self.class_weights)}; each weight must be above 0")
        if self.class_weights and self.classes and len(self.class_weights) != len(self.classes):
            raise UserError(
                f"objective.class_weights has {len(self.class_weights)} weights for {len(self.classes)} classes "
                f"({shorten(self.classes)}); give one for each, in this order"
            )

    def weighted(self, counts: Mapping[str, int]) -> Self:
        """Return a copy with class weights filled in if `balanced` is set.

        Weights follow scikit-learn's `class_weight="balanced"`: their mean over training examples is 1.

        Args:
          counts: {class: number of training examples}.
        """
        if not self.balanced:
            return self
        # n / (C n_c), so that the classes sum to the same weight n / C.
        weights = tuple(sum(counts.values()) / (len(counts) * counts[name]) for name in self.classes)
        return dataclasses.replace(self, class_weights=weights)

    @property
    def best_metric(self) -> str:
        return self.metric

    @property
    def num_outputs(self) -> int:
        return len(self.classes)

    def features(self, examples, draw):
        features = super().features(examples, draw)
        if self.class_weights:
            of_class = np.array(self.class_weights, np.float32)[examples.ragged.labels["label"]]
            features["class_weights_BN"] = examples.examples_to_rows(of_class) * (features["weights_BN"] > 0)
        return features

    def weights(self, batch):
        return {self.term: jnp.sum(batch.get("class_weights_BN", batch["weights_BN"]))}

    def terms_of(self, logits, batch):
        counts_BN = batch["weights_BN"]
        weights_BN = batch.get("class_weights_BN", counts_BN)
        loss, _ = classification_term(logits, batch["labels_BN"], weights_BN)
        if self.label_smoothing:
            # (1 - s) * cross-entropy of the label + s * mean cross-entropy over all classes
            of_all_classes = jax.nn.logsumexp(logits, axis=-1) - jnp.mean(logits, axis=-1)
            loss += self.label_smoothing * (jnp.sum(weights_BN * of_all_classes) - loss)
        # Accuracy counts examples and ignores class weights.
        _, correct = classification_term(logits, batch["labels_BN"], counts_BN)
        return {self.term: loss}, {"accuracy": (correct, counts_BN.sum())}

    def outputs(self, model, params, batch, taps=None):
        """Return `probabilities` over the classes."""
        return {"probabilities": Output(jax.nn.softmax(self.apply(model, params, batch, taps=taps)), per="example")}

    def baselines(self, batch, token_counts):
        """Return the accuracy of always predicting the most frequent training class."""
        return majority_accuracy(batch["labels_BN"][batch["weights_BN"] > 0], token_counts)

    def score(self, outputs, examples, records):
        from sklearn.metrics import f1_score, matthews_corrcoef

        labels, guesses = examples.labels["label"], outputs["probabilities"].argmax(axis=-1)
        # scikit-learn's binary F1 is that of class 1, the second one.
        how = {"average": "binary"}
        if len(self.classes) != 2:
            how = {"average": "macro", "labels": range(len(self.classes))}  # also those that the file lacks
        return {
            "f1": float(f1_score(labels, guesses, zero_division=0.0, **how)),
            "matthews": float(matthews_corrcoef(labels, guesses)),
        }

    def scores(self, outputs, examples, records):
        is_right = outputs["probabilities"].argmax(axis=-1) == examples.labels["label"]
        return {"accuracy": record_scores(records, is_right)}

    def predictions(self, outputs, examples, records):
        """Return records with `prediction`, a class, and `probabilities`, {class: probability}."""
        return [
            without_location(record) | class_probabilities(self.classes, probabilities_C)
            for record, probabilities_C in zip(records, outputs["probabilities"], strict=True)
        ]
