"""Sentence and sentence-pair regression, as on STS-B (Devlin et al., 2019, section 4.1; arXiv 1810.04805)."""

import dataclasses
import math
from typing import ClassVar

import jax

from bertjax.objectives.finetuning.answers import NumberAnswers
from bertjax.objectives.finetuning.base import OF_HEAD, ExampleObjective
from bertjax.objectives.host import Output
from bertjax.objectives.losses import squared_error
from bertjax.runtime.setting import setting

# `CrossEncoder` in sentence-transformers applies a sigmoid if there is one label; converted models need it too.
ACTIVATIONS = {"identity": lambda logits: logits, "sigmoid": jax.nn.sigmoid}


@dataclasses.dataclass(frozen=True)
class Regression(NumberAnswers, ExampleObjective):
    """Predicts a number with squared error. Terms: `regression`.

    Attributes:
      activation: function from logit to number: `identity`, or `sigmoid` for numbers between 0 and 1.
    """

    activation: str = setting("identity", kw_only=True, metadata=OF_HEAD, choices=ACTIVATIONS)
    term: ClassVar[str] = "regression"
    num_outputs: ClassVar[int] = 1

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
