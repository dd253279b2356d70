"""Floating-point operations of the training steps of a task, by formula."""

import dataclasses

import jax

from bertjax.models.flops import Counts, FlopsPart, encoder_products


@dataclasses.dataclass(frozen=True)
class StepFlops:
    """Counts the operations of the matrix products of training steps.

    A multiply-add is two operations, and the backward pass costs twice the forward pass (Kaplan et al., 2020, arXiv
    2001.08361, section 2.1). What the backward pass computes again (`runtime.remat`) is not counted.

    Attributes:
      parts: the encoders that a step runs, as the objective lists them.
    """

    parts: tuple[FlopsPart, ...]

    def useful(self, counts: Counts) -> float:
        """Return the operations on real tokens, for the counts of `step.consumption`."""
        return sum(_operations(part, counts) for part in self.parts)

    def executed(self, batches: dict[str, jax.Array | jax.ShapeDtypeStruct]) -> float:
        """Return the operations on batches [steps, B, ...] as if nothing were padding and no rows were packed.

        Every token attends to all T tokens of its row, and heads compute all places of K and N.
        """
        steps, rows, seq_len = batches["tokens_BT"].shape
        positions = sum(batches[name].shape[2] for name in batches if name.endswith("_weights_BK"))
        examples = batches["example_ids_BN"].shape[2]
        tokens = float(steps * rows * seq_len)
        return self.useful(Counts(tokens, tokens * seq_len, steps * rows * positions, steps * rows * examples))


def _operations(part: FlopsPart, counts: Counts) -> float:
    encoder = encoder_products(part.encoder, counts, part.read, part.queries)
    heads = sum(products * getattr(counts, unit) for unit, products in part.heads.items())
    return 2.0 * (encoder * (3 if part.backward == "all" else 1) + heads * (1 if part.backward == "none" else 3))
