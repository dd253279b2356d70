"""Floating-point operations of the training steps of a task, by formula, and the counts that they follow from."""

import dataclasses

import jax
import jax.numpy as jnp

from bertjax.config import Config
from bertjax.models.config import EncoderConfig
from bertjax.models.flops import Counts, FlopsPart, encoder_products
from bertjax.models.parameters import encoder_shapes
from bertjax.training.config import matches_any
from bertjax.training.shapes import batch_shapes


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
        """Return the operations on real tokens, for the counts of `consumption`."""
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


def of_task(config: Config, task: str, encoder: EncoderConfig) -> StepFlops:
    """Return what counts the operations of a task's steps. A frozen encoder has no backward pass."""
    parts = config.tasks[task].objective.all_flops_parts(encoder)
    is_frozen = all(matches_any(config.frozen, f"encoder/{path}") for path in encoder_shapes(encoder))
    if is_frozen and not config.lora.rank:
        parts = (parts[0]._replace(backward="heads"), *parts[1:])
    return StepFlops(parts)


def per_step(config: Config, stage: int, encoder: EncoderConfig) -> float:
    """Return the operations that a step of a stage executes, the mean over the tasks that take turns.

    Args:
      config: the configuration; rows of a batch and weights of tasks are resolved.
      stage: index of the stage.
      encoder: the encoder with its vocabulary and all layers.
    """
    at = config.stages[stage]
    encoder = dataclasses.replace(encoder, layers=config.layers_at(stage))
    total = 0.0
    for name in (names := at.among(config.tasks)):
        shapes = batch_shapes(config.task_at(stage, name), encoder.vocab_size, at.seq_len, at.batch)
        batches = {key: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype) for key, leaf in shapes.items()}
        total += config.tasks[name].weight * of_task(config, name, encoder).executed(batches)
    return total / sum(config.tasks[name].weight for name in names)


def _operations(part: FlopsPart, counts: Counts) -> float:
    encoder = encoder_products(part.encoder, counts, part.read, part.queries)
    heads = sum(products * getattr(counts, unit) for unit, products in part.heads.items())
    return 2.0 * (encoder * (3 if part.backward == "all" else 1) + heads * (1 if part.backward == "none" else 3))


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
