"""Floating-point operations of the training steps of a task, by formula, and the counts that they follow from."""

import dataclasses

import jax
import jax.numpy as jnp

from bertjax.models.flops import Counts, FlopsPart, encoder_products


@dataclasses.dataclass(frozen=True)
class StepFlops:
    """Counts the operations of the matrix products of training steps.

    A multiply-add is two operations, and the backward pass costs twice the forward pass (Kaplan et al., 2020, arXiv
    2001.08361, section 2.1). What the backward pass computes again (`runtime.remat`) is not counted.

    Attributes:
      parts: the encoders that a step runs, as the objective lists them.
      share: share of their operations that is left with frozen parameters (`bertjax.training.stage_flops`). It is that
        of whole batches, and taken to be the same for their real tokens.
    """

    parts: tuple[FlopsPart, ...]
    share: float = 1.0

    def useful(self, counts: Counts) -> float:
        """Return the operations on real tokens, for the counts of `consumption`."""
        return self.share * sum(_operations(part, counts) for part in self.parts)

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
    products = encoder_products(part.encoder, counts, part.read, part.queries)
    products += sum(each * getattr(counts, unit) for unit, each in part.heads.items())
    return 2.0 * products * (3 if part.has_backward else 1)


def consumption(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return the numbers of real tokens, of pairs of tokens that attend to each other, of predicted positions, of
    examples, and of rows that are not empty."""
    slots_N = 1 + jnp.arange(batch["example_ids_BN"].shape[1])
    lengths_BN = jnp.sum(batch["examples_BT"][:, :, None] == slots_N, axis=1)
    predicted = [jnp.sum(batch[name] > 0) for name in batch if name.endswith("_weights_BK")]
    return {
        "tokens": jnp.sum(lengths_BN),
        "token_pairs": jnp.sum(lengths_BN.astype(jnp.float32) ** 2),
        "predictions": jnp.asarray(sum(predicted)),
        "examples": jnp.sum(lengths_BN > 0),
        "rows": jnp.sum(jnp.any(lengths_BN > 0, axis=1)),
    }
