"""The params that a model runs with, as a function of the trained ones. No module knows of it."""

import dataclasses

import jax

from bertjax.training.lora import LoraConfig, merge
from bertjax.training.pruning import PruningConfig, pruned
from bertjax.training.quantization import QuantizationConfig, rounded


@dataclasses.dataclass(frozen=True)
class ModelParams:
    """Factors are merged, then weights are pruned, then they are rounded.

    Attributes:
      lora: which kernels have factors.
      pruning: which weights are 0.
      quantization: how many bits the others have.
      steps: number of steps of the run, over which the share of pruned weights rises.
    """

    lora: LoraConfig = LoraConfig()
    pruning: PruningConfig = PruningConfig()
    quantization: QuantizationConfig = QuantizationConfig()
    steps: int = 0

    @property
    def is_identity(self) -> bool:
        """Whether a model runs with the trained params."""
        return not (self.lora.rank or self.pruning.kind or self.quantization.bits)

    def __call__(self, params: dict, step: jax.Array | int) -> dict:
        """Return the params of the model after `step` steps."""
        return rounded(self.quantization, pruned(self.pruning, merge(self.lora, params), step, self.steps))
