"""Classification of sentences and of pairs (Devlin et al., 2019, section 4.1; arXiv 1810.04805)."""

import dataclasses
from typing import ClassVar

import jax
from flax import linen as nn

from bertjax.errors import UserError
from bertjax.models.config import EncoderConfig
from bertjax.objectives.finetuning.base import (
    ExampleObjective,
    PooledModule,
    majority_accuracy,
    shown,
    told_probabilities,
)
from bertjax.objectives.losses import classification_term

METRICS = ("accuracy", "f1", "matthews")


@dataclasses.dataclass(frozen=True)
class Classification(ExampleObjective):
    """Predicts one of several classes. Terms: `classification`.

    F1 is that of the second class where there are two (MRPC's and QQP's `1`), else the mean over the classes.

    Attributes:
      classes: see `Objective`.
      metric: by which the best checkpoint is chosen and seeds are compared: `accuracy`, `f1` or `matthews`.
    """

    classes: tuple[str, ...] = ()
    metric: str = "accuracy"
    term: ClassVar[str] = "classification"

    def __post_init__(self):
        if self.metric not in METRICS:
            raise UserError(f"objective.metric={self.metric!r} is unknown; choose one of {', '.join(METRICS)}")

    @property
    def best_metric(self) -> str:
        return self.metric

    def module(self, encoder: EncoderConfig) -> nn.Module:
        return PooledModule(encoder, self.term, len(self.classes))

    def terms(self, module, params, frozen, batch, key, train):
        logits_BNC = module.apply({"params": params}, batch, key if train else None)
        weights_BN = batch["weights_BN"]
        loss, right = classification_term(logits_BNC, batch["labels_BN"], weights_BN)
        return {self.term: loss}, {"accuracy": (right, weights_BN.sum())}

    def outputs(self, module, params, batch):
        """`probabilities_BNC`, of the classes."""
        return {"probabilities_BNC": jax.nn.softmax(module.apply({"params": params}, batch))}

    def baselines(self, batch, token_counts):
        """Always guessing the most frequent class of the training file."""
        return majority_accuracy(batch["labels_BN"][batch["weights_BN"] > 0], token_counts)

    def score(self, outputs, examples, records):
        from sklearn.metrics import f1_score, matthews_corrcoef

        labels, guesses = examples.labels["label"], outputs["probabilities_BNC"].argmax(axis=-1)
        average = "binary" if len(self.classes) == 2 else "macro"
        return {
            "f1": float(f1_score(labels, guesses, average=average, zero_division=0.0)),
            "matthews": float(matthews_corrcoef(labels, guesses)),
        }

    def predictions(self, outputs, examples, records):
        """Each record with `prediction`, a class, and `probabilities`, {class: probability}."""
        return [
            shown(record) | told_probabilities(self.classes, probabilities_C)
            for record, probabilities_C in zip(records, outputs["probabilities_BNC"], strict=True)
        ]
