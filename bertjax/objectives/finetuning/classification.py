"""Sentence and sentence-pair classification (Devlin et al., 2019, section 4.1; arXiv 1810.04805)."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.objectives.finetuning.answers import (
    ClassAnswers,
    majority_accuracy,
)
from bertjax.objectives.finetuning.base import ExampleObjective
from bertjax.objectives.host import Output
from bertjax.objectives.losses import classification_term
from bertjax.runtime.errors import UserError, shorten
from bertjax.runtime.setting import TRAINING_ONLY, setting

METRICS = ("accuracy", "f1", "matthews")


@dataclasses.dataclass(frozen=True)
class Classification(ClassAnswers, ExampleObjective):
    """Predicts one of several classes. Terms: `classification`.

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
