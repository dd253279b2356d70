"""Regression on sentences and pairs, as on STS-B (Devlin et al., 2019, section 4.1; arXiv 1810.04805)."""

import dataclasses
from typing import ClassVar

from bertjax.objectives.finetuning.base import ExampleObjective, correlations, without_location
from bertjax.objectives.losses import squared_error
from bertjax.objectives.outputs import Output


@dataclasses.dataclass(frozen=True)
class Regression(ExampleObjective):
    """Predicts a number, by squared error. Terms: `regression`."""

    term: ClassVar[str] = "regression"
    best_metric: ClassVar[str] = "spearman"

    def terms_of(self, logits, batch):
        return {self.term: squared_error(logits[..., 0], batch["labels_BN"], batch["weights_BN"])}, {}

    def outputs(self, model, params, batch, taps=None):
        """`number`."""
        return {"number": Output(self.apply(model, params, batch, taps=taps)[..., 0], per="example")}

    def score(self, outputs, examples, records):
        """Return correlations with the labels; 0 if all predictions are equal."""
        return correlations(outputs["number"], examples.labels["label"])

    def predictions(self, outputs, examples, records):
        """Return each record with `prediction`, a number."""
        return [
            without_location(record) | {"prediction": round(float(number), 6)}
            for record, number in zip(records, outputs["number"], strict=True)
        ]
