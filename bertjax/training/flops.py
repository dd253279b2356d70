"""FLOPs of training steps by formula, and the token counts that the formula needs."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from bertjax.models.flops import Counts, FlopsPart, encoder_products


@dataclasses.dataclass(frozen=True)
class StepFlops:
    """Counts the matrix-product FLOPs of training steps.

    A multiply-add is two operations, and the backward pass costs twice the forward pass (Kaplan et al., 2020, arXiv
    2001.08361, section 2.1). Recomputation in the backward pass (`runtime.remat`) is not counted.

    Attributes:
      parts: encoders that a step runs, as the objective lists them.
      share: share of these FLOPs that remains with frozen parameters, or 2 for an objective of two passes
        (`bertjax.training.stage_flops`), measured on full batches and assumed to be equal for real tokens.
    """

    parts: tuple[FlopsPart, ...]
    share: float = 1.0

    def useful(self, counts: Counts) -> float:
        """Return the FLOPs on real tokens, given the counts from `consumption`."""
        return self.share * sum(_operations(part, counts) for part in self.parts)

    def executed(self, batches: Mapping[str, jax.Array | jax.ShapeDtypeStruct]) -> float:
        """Return the FLOPs on batches [steps, B, ...], padding included and without packing.

        Every token attends to all T tokens in its row, and heads compute all K positions and N slots.
        """
        steps, rows, seq_len = batches["tokens_BT"].shape
        # Every objective calls the weights of its predicted positions `*_weights_BK`; padded positions have weight 0.
        positions = sum(batches[name].shape[2] for name in batches if name.endswith("_weights_BK"))
        examples = batches["example_ids_BN"].shape[2]
        tokens = float(steps * rows * seq_len)
        return self.useful(Counts(tokens, tokens * seq_len, steps * rows * positions, steps * rows * examples))


def _operations(part: FlopsPart, counts: Counts) -> float:
    products = encoder_products(part.encoder, counts, part.read, part.queries, part.answers)
    products += sum(each * getattr(counts, unit) for unit, each in part.heads.items())
    # A multiply-add is 2 operations. The backward pass has two products for each forward one: dL/dx and dL/dW.
    return 2.0 * products * (3 if part.has_backward else 1)


# Names of its counts.
CONSUMPTION = ("tokens", "token_pairs", "predictions", "examples", "rows")


def consumption(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Count real tokens, token pairs within an example, predicted positions, examples, and non-empty rows."""
    slots_N = 1 + jnp.arange(batch["example_ids_BN"].shape[1])  # 0 is padding, see `examples_BT`
    lengths_BN = jnp.sum(batch["examples_BT"][:, :, None] == slots_N, axis=1)
    predicted = [jnp.sum(batch[name] > 0) for name in batch if name.endswith("_weights_BK")]
    return {
        "tokens": jnp.sum(lengths_BN),
        # float32: int32 would overflow at 8,192 rows of one 512-token example each.
        "token_pairs": jnp.sum(lengths_BN.astype(jnp.float32) ** 2),  # attention is quadratic within each example
        "predictions": jnp.asarray(sum(predicted)),
        "examples": jnp.sum(lengths_BN > 0),
        "rows": jnp.sum(jnp.any(lengths_BN > 0, axis=1)),
    }
