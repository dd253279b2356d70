"""Turn trained params into the ones that the model runs with (tables summed, LoRA merged, pruned, rounded).

Modules are unaware.
"""

import dataclasses

import jax

from bertjax.models import disentangled_embeddings
from bertjax.training.compression import PruningConfig, QuantizationConfig, pruned, rounded
from bertjax.training.lora import LoraConfig, merge
from bertjax.training.optim.freezing import Freezing


@dataclasses.dataclass(frozen=True)
class ModelParams:
    """A function from trained params to the model's params: sum tables, merge LoRA factors, then prune, then round.

    Attributes:
      lora: LoRA settings.
      pruning: pruning settings.
      quantization: rounding settings.
      steps: steps in the run, over which the share of pruned weights rises.
      freezing: trained params without a gradient; None if each has one.
    """

    lora: LoraConfig = LoraConfig()
    pruning: PruningConfig = PruningConfig()
    quantization: QuantizationConfig = QuantizationConfig()
    steps: int = 0
    freezing: Freezing | None = None

    def is_identity(self, params: dict) -> bool:
        """Return whether the model runs with these trained params as they are."""
        is_summed = disentangled_embeddings.ROOT in params
        return not (is_summed or self.lora.rank or self.pruning.kind or self.quantization.bits)

    def __call__(self, params: dict, step: jax.Array | int) -> dict:
        """Return the model's params after `step` steps."""
        if self.freezing:
            params = self.freezing.without_gradient(params)
        if self.is_identity(params):
            return params
        # Pruning must see the merged kernel. Rounding is last, so that the export stores its result; it keeps zeros.
        merged = merge(self.lora, disentangled_embeddings.merge(params))
        return rounded(self.quantization, pruned(self.pruning, merged, step, self.steps))
