"""Sentence and sentence-pair regression, as on STS-B (Devlin et al., 2019, section 4.1; arXiv 1810.04805)."""

import dataclasses
import math
from typing import ClassVar

import jax

from bertjax.objectives.finetuning.base import OF_HEAD, ExampleObjective, correlations, without_location
from bertjax.objectives.losses import squared_error
from bertjax.objectives.outputs import Output
from bertjax.runtime.setting import setting

# `CrossEncoder` in sentence-transformers applies a sigmoid if there is one label; converted models need it too.
ACTIVATIONS = {"identity": lambda logits: logits, "sigmoid": jax.nn.sigmoid}


@dataclasses.dataclass(frozen=True)
class Regression(ExampleObjective):
    """Predicts a number with squared error. Terms: `regression`.

    Attributes:
      activation: function from logit to number: `identity`, or `sigmoid` for numbers between 0 and 1.
    """

    activation: str = setting("identity", kw_only=True, metadata=OF_HEAD, choices=ACTIVATIONS)
    term: ClassVar[str] = "regression"
    num_outputs: ClassVar[int] = 1
    best_metric: ClassVar[str] = "spearman"

    @property
    def reach(self) -> tuple[float, float]:
        """The lowest and the highest number that the activation gives."""
        return (0.0, 1.0) if self.activation == "sigmoid" else (-math.inf, math.inf)

    def terms_of(self, logits, batch):
        numbers_BN = ACTIVATIONS[self.activation](logits[..., 0])
        return {self.term: squared_error(numbers_BN, batch["labels_BN"], batch["weights_BN"])}, {}

    def outputs(self, model, params, batch, taps=None):
        """Return `number`."""
        logits = self.apply(model, params, batch, taps=taps)
        return {"number": Output(ACTIVATIONS[self.activation](logits[..., 0]), per="example")}

    def score(self, outputs, examples, records):
        """Return correlations with the labels, 0 if predictions are constant, and the loss of their mean."""
        labels = examples.labels["label"]
        return correlations(outputs["number"], labels) | {"label_variance": float(labels.var())}

    def predictions(self, outputs, examples, records):
        """Return records with `prediction`, a number."""
        return [
            without_location(record) | {"prediction": round(float(number), 6)}
            for record, number in zip(records, outputs["number"], strict=True)
        ]
