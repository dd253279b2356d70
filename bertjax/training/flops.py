"""Floating-point operations of the training steps of a task, by formula."""

import dataclasses

import jax

from bertjax.hardware.flops import training_flops
from bertjax.objectives.base import FlopsPart


@dataclasses.dataclass(frozen=True)
class StepFlops:
    """Counts the operations of training steps.

    Attributes:
      parts: the encoders that a step runs, as the objective lists them.
    """

    parts: tuple[FlopsPart, ...]

    def useful(self, tokens: float, token_pairs: float, predictions: float) -> float:
        """Return the operations on real tokens, for the counts of `step.consumption`."""
        return sum(
            part.share * training_flops(part.encoder, tokens, token_pairs, predictions * part.predicts)
            for part in self.parts
        )

    def executed(self, batches: dict[str, jax.Array | jax.ShapeDtypeStruct]) -> float:
        """Return the operations on batches [steps, B, ...] with padding, and with the head at every position of K."""
        steps, rows, seq_len = batches["tokens_BT"].shape
        positions = sum(batches[name].shape[2] for name in batches if name.endswith("_weights_BK"))
        tokens = float(steps * rows * seq_len)
        return self.useful(tokens, tokens * seq_len, steps * rows * positions)
