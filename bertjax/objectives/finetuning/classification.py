"""Sentence and sentence-pair classification (Devlin et al., 2019, section 4.1; arXiv 1810.04805)."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Self, cast

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.objectives.base import Traits
from bertjax.objectives.finetuning import calibration
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
from bertjax.runtime.setting import TRAINING_ONLY, setting

METRICS = ("accuracy", "f1", "matthews")


@dataclasses.dataclass(frozen=True)
class Classification(ExampleObjective):
    """Predicts one of several classes. Terms: `classification`.

    With two classes, `f1` scores the second class (`1` in MRPC and QQP); with more classes it is the macro average.

    Attributes:
      classes: class names in order; empty takes them from the training file.
      metric: metric that selects the best checkpoint and compares seeds: `accuracy`, `f1` or `matthews`.
      label_smoothing: target probability that is spread evenly over all classes (Szegedy et al., 2016, arXiv
        1512.00567, section 7). Evaluation losses include it too.
      balanced: whether every class has the same total loss weight. A run turns it into `class_weights`.
      class_weights: loss weight per class, in the order of `classes`; 1 for all if empty.
      temperature: number that divides the logits of predictions (`calibration`). None: each evaluation in a run fits
        it on the held-out examples, reports it as `temperature`, and the export keeps the last one.
      precision: share of right predictions among those that are accepted; evaluations choose `threshold` for it. None
        accepts all predictions.
      threshold: predictions with a probability above this, at `temperature`, are accepted. None: see `precision`.
    """

    classes: tuple[str, ...] = ()
    metric: str = setting("accuracy", choices=METRICS, metadata=TRAINING_ONLY)
    label_smoothing: float = setting(0.0, least=0, below=1)
    balanced: bool = False
    class_weights: tuple[float, ...] = setting((), above=0)
    temperature: float | None = setting(None, above=0)
    precision: float | None = setting(None, least=0, most=1)
    threshold: float | None = setting(None, least=0, most=1)
    term: ClassVar[str] = "classification"

    def __post_init__(self):
        super().__post_init__()
        if self.class_weights and self.classes and len(self.class_weights) != len(self.classes):
            raise UserError(
                f"objective.class_weights has {len(self.class_weights)} weights for {len(self.classes)} classes "
                f"({shorten(self.classes)}); give one for each, in this order"
            )

    def weighted(self, counts: Mapping[str, int]) -> Self:
        """Return a copy with class weights filled in if `balanced` is set and they are not.

        Weights follow scikit-learn's `class_weight="balanced"`: their mean over training examples is 1.

        Args:
          counts: {class: number of training examples}.
        """
        if not self.balanced or self.class_weights:
            return self
        # n / (C n_c), so that the classes sum to the same weight n / C.
        weights = tuple(sum(counts.values()) / (len(counts) * counts[name]) for name in self.classes)
        return dataclasses.replace(self, class_weights=weights)

    @property
    def traits(self) -> Traits:
        has_threshold = self.precision is not None or self.threshold is not None
        return Traits(labels=("label",), tuned_settings=("temperature", *["threshold"] * has_threshold))

    @property
    def best_metric(self) -> str:
        return self.metric

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
        """Return `probabilities` over the classes, at temperature 1: a teacher and an ensemble read these."""
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
            **self._calibration(outputs["probabilities"], labels),
        }

    def _calibration(self, probabilities_MC: np.ndarray, labels_M: np.ndarray) -> dict[str, float]:
        """Return `temperature`, the calibration error before and after it, and what `threshold` accepts."""
        temperature = self.temperature or calibration.fit_temperature(probabilities_MC, labels_M)
        scaled_MC = calibration.scaled(probabilities_MC, temperature)
        scores = {
            "temperature": temperature,
            "ece": calibration.expected_calibration_error(probabilities_MC, labels_M),
            "ece_calibrated": calibration.expected_calibration_error(scaled_MC, labels_M),
        }
        if "threshold" not in self.traits.tuned_settings:
            return scores
        confidences_M, is_right_M = scaled_MC.max(axis=-1), scaled_MC.argmax(axis=-1) == labels_M
        threshold = self.threshold
        if threshold is None:
            threshold = calibration.fit_threshold(confidences_M, is_right_M, cast(float, self.precision))
        is_accepted_M = confidences_M > threshold
        scores |= {"threshold": threshold, "coverage": float(is_accepted_M.mean())}
        return scores | ({"precision": float(is_right_M[is_accepted_M].mean())} if is_accepted_M.any() else {})

    def scores(self, outputs, examples, records):
        is_right = outputs["probabilities"].argmax(axis=-1) == examples.labels["label"]
        return {"accuracy": record_scores(records, is_right)}

    def predictions(self, outputs, examples, records):
        """Return records with `prediction`, a class, and `probabilities`, {class: probability}, at `temperature`.

        With a threshold, `accepted` is whether the probability of the prediction is above it.
        """
        probabilities_MC = outputs["probabilities"]
        if self.temperature is not None:
            probabilities_MC = calibration.scaled(probabilities_MC, self.temperature)
        return [
            without_location(record) | class_probabilities(self.classes, of_record_C) | self._accepted(of_record_C)
            for record, of_record_C in zip(records, probabilities_MC, strict=True)
        ]

    def _accepted(self, probabilities_C: np.ndarray) -> dict[str, bool]:
        return {} if self.threshold is None else {"accepted": bool(probabilities_C.max() > self.threshold)}
