"""Floating-point operations of the training steps of a task, by formula, and the counts that they follow from."""

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from bertjax.models.flops import Counts, FlopsPart, encoder_products

if TYPE_CHECKING:
    from bertjax.training.program import Program


@dataclasses.dataclass(frozen=True)
class StepFlops:
    """Counts the operations of the matrix products of training steps.

    A multiply-add is two operations, and the backward pass costs twice the forward pass (Kaplan et al., 2020, arXiv
    2001.08361, section 2.1). What the backward pass computes again (`runtime.remat`) is not counted.

    Attributes:
      parts: the encoders that a step runs, as the objective lists them.
      share: share of their operations that is left with frozen parameters (`training.traced_products`), taken to be the
        same for real tokens and for padding.
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


def per_step(program: "Program", stage: int) -> float:
    """Return the operations that a step of a stage executes, the mean over the tasks that take turns.

    Args:
      program: the run; rows of a batch and weights of tasks are resolved.
      stage: index of the stage.
    """
    at, tasks = program.config.stages[stage], program.at(stage).tasks
    weights = {name: program.config.tasks[name].weight for name in at.among(tasks)}
    total = 0.0
    for name, weight in weights.items():
        shapes = tasks[name].batch_shapes(at)
        batches = {key: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype) for key, leaf in shapes.items()}
        total += weight * tasks[name].flops_at(stage).executed(batches)
    return total / sum(weights.values())


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
