"""Turn trained params into the ones that the model runs with (LoRA merged, pruned, rounded). Modules are unaware."""

import dataclasses

import jax

from bertjax.training.lora import LoraConfig, merge
from bertjax.training.optim.freezing import Freezing
from bertjax.training.pruning import PruningConfig, pruned
from bertjax.training.quantization import QuantizationConfig, rounded


@dataclasses.dataclass(frozen=True)
class ModelParams:
    """A function from trained params to the model's params: merge LoRA factors, then prune, then round.

    Attributes:
      lora: LoRA settings.
      pruning: pruning settings.
      quantization: rounding settings.
      steps: steps in the run, over which the share of pruned weights rises.
      freezing: trained params without a gradient.
    """

    lora: LoraConfig = LoraConfig()
    pruning: PruningConfig = PruningConfig()
    quantization: QuantizationConfig = QuantizationConfig()
    steps: int = 0
    freezing: Freezing = Freezing()

    @property
    def is_identity(self) -> bool:
        """Whether the model runs with the trained params as they are."""
        return not (self.lora.rank or self.pruning.kind or self.quantization.bits)

    def __call__(self, params: dict, step: jax.Array | int) -> dict:
        """Return the model's params after `step` steps."""
        if self.is_identity and not self.freezing.is_used:
            return params
        # Pruning must see the merged kernel. Rounding is last, so that the export stores its result; it keeps zeros.
        merged = merge(self.lora, self.freezing.without_gradient(params))
        return rounded(self.quantization, pruned(self.pruning, merged, step, self.steps))
