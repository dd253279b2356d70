"""Multiple choice: which of C texts goes with a context (Devlin et al., 2019, section 4.4; arXiv 1810.04805)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import Arrays
from bertjax.objectives.finetuning.base import ExampleObjective, PooledModule, majority_accuracy, shown
from bertjax.objectives.losses import classification_term


@dataclasses.dataclass(frozen=True)
class MultipleChoice(ExampleObjective):
    """A score for each choice from its pooled [CLS], and a softmax over the C of a record. Terms: `multiple_choice`.

    The choices of a record are C neighboring examples of a row, N = C x G of them.

    Attributes:
      classes: numbers of the choices, see `Objective`; there are C.
    """

    classes: tuple[str, ...] = ()
    labels: ClassVar[tuple[str, ...]] = ("choice",)
    term: ClassVar[str] = "multiple_choice"
    best_metric: ClassVar[str] = "accuracy"

    @property
    def group(self) -> int:
        return max(1, len(self.classes))

    def module(self, encoder: EncoderConfig) -> nn.Module:
        return PooledModule(encoder, self.term, 1)

    def weights(self, batch):
        return {self.term: jnp.sum(batch["weights_BN"][:, :: self.group])}

    def terms(self, module, params, frozen, batch, key, train):
        weights_BG = batch["weights_BN"][:, :: self.group]
        logits_BGC = self._logits(module, params, batch, key if train else None)
        loss, right = classification_term(logits_BGC, batch["labels_BN"][:, :: self.group], weights_BG)
        return {self.term: loss}, {"accuracy": (right, weights_BG.sum())}

    def outputs(self, module, params, batch):
        """`probability_BN`, of a choice among those of its record."""
        probabilities_BGC = jax.nn.softmax(self._logits(module, params, batch, None))
        return {"probability_BN": probabilities_BGC.reshape(len(probabilities_BGC), -1)}

    def _logits(self, module: nn.Module, params: dict, batch: Arrays, key: jax.Array | None) -> jax.Array:
        scores_BN1 = module.apply({"params": params}, batch, key)
        return scores_BN1.reshape(len(scores_BN1), -1, self.group)

    def baselines(self, batch, token_counts):
        """Always choosing the number that is most often right in the training file."""
        labels = batch["labels_BN"][:, :: self.group][batch["weights_BN"][:, :: self.group] > 0]
        order = np.array([int(name) for name in self.classes])
        return majority_accuracy(labels, token_counts[np.argsort(order)])

    def predictions(self, outputs, examples, records):
        """Each record with `prediction`, the number of a choice, and `probabilities`, of the choices in their order."""
        probabilities_MC = outputs["probability_BN"].reshape(-1, self.group)
        return [
            shown(record)
            | {
                "prediction": int(probabilities_C.argmax()),
                "probabilities": [round(float(probability), 6) for probability in probabilities_C],
            }
            for record, probabilities_C in zip(records[:: self.group], probabilities_MC, strict=True)
        ]
