"""Regression on sentences and pairs, as on STS-B (Devlin et al., 2019, section 4.1; arXiv 1810.04805)."""

import dataclasses
from typing import ClassVar

from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.objectives.finetuning.base import ExampleObjective, PooledModule, correlations, shown
from bertjax.objectives.losses import squared_error


@dataclasses.dataclass(frozen=True)
class Regression(ExampleObjective):
    """Predicts a number, by squared error. Terms: `regression`."""

    term: ClassVar[str] = "regression"
    best_metric: ClassVar[str] = "spearman"

    def module(self, encoder: EncoderConfig) -> nn.Module:
        return PooledModule(encoder, self.term, 1)

    def terms(self, module, params, frozen, batch, key, train):
        numbers_BN = module.apply({"params": params}, batch, key if train else None)[..., 0]
        return {self.term: squared_error(numbers_BN, batch["labels_BN"], batch["weights_BN"])}, {}

    def outputs(self, module, params, batch):
        """`number_BN`."""
        return {"number_BN": module.apply({"params": params}, batch)[..., 0]}

    def score(self, outputs, examples, records):
        """Correlations with the labels; 0 where all predictions are the same."""
        return correlations(outputs["number_BN"], examples.labels["label"])

    def predictions(self, outputs, examples, records):
        """Each record with `prediction`, a number."""
        return [
            shown(record) | {"prediction": round(float(number), 6)}
            for record, number in zip(records, outputs["number_BN"], strict=True)
        ]
