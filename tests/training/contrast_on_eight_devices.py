"""The contrastive loss and its gradients, plain and on eight simulated devices; prints, as JSON, how they differ.

Plain is without `shard_map`: nothing is gathered there.
"""

import dataclasses
import functools
import json

import jax
import numpy as np

from bertjax.objectives.finetuning.embeddings import EmbeddingContrastive
from bertjax.training.config import MeshConfig
from bertjax.training.evaluation import eval_step
from bertjax.training.step import gradients
from tests import batches
from tests.objectives.groups import batch_of, examples
from tests.training.trainer import make_step

LAYOUTS = {
    "one device": {},
    "replicated": {"mesh": MeshConfig(8, 1, 1), "strategy": "replicated"},
    "gathered, data x fsdp": {"mesh": MeshConfig(2, 4, 1), "strategy": "gathered"},
    "fsdp, data x fsdp x tensor": {"mesh": MeshConfig(2, 2, 2), "strategy": "fsdp"},
}
# Rows of two pairs, of one and of none.
ROWS = [[0, 1, 2, 3], [4, 5, -1, -1], [6, 7, 8, 9], [-1] * 4, [10, 11, 12, 13], [14, 15, -1, -1], [16, 17, 18, 19]]


@dataclasses.dataclass(frozen=True)
class Keeping(EmbeddingContrastive):
    """Keeps the tokens of the batch for the slots of an objective."""

    def terms(self, model, params, frozen, batch, key, train, taps=None):
        return *super().terms(model, params, frozen, batch, key, train, taps), {"tokens_BT": batch["tokens_BT"]}


def measure(step, params: dict, batch: dict) -> tuple[float, float, float, list[np.ndarray]]:
    """The loss and the accuracy in a step of training, the loss in an evaluation, the gradient."""
    objective = Keeping()
    changed = dataclasses.replace(step.loss, objective=objective, model=objective.model(step.loss.model.config))
    step = dataclasses.replace(step, loss=changed)
    gradient, losses, metrics, _, kept = jax.jit(functools.partial(gradients, step))(params, None, batch, 0)
    np.testing.assert_array_equal(kept["tokens_BT"], batch["tokens_BT"])  # the rows of all devices, in their order
    total, weight = jax.jit(functools.partial(eval_step, step.loss))(params, None, batch)["embedding_loss"]
    right, _ = metrics["accuracy"]
    return float(losses["embedding"]), float(right), float(total / weight), jax.device_get(jax.tree.leaves(gradient))


def plain(step, params: dict, batch: dict) -> tuple[float, float, float, list[np.ndarray]]:
    """The same from the terms of the whole batch at once."""
    objective = EmbeddingContrastive()
    module, weights = objective.model(step.loss.model.config), objective.weights(batch)["embedding"]

    def loss(params, train):
        keys = step.loss.keys(0, len(batch["tokens_BT"]))
        sums, metrics = objective.terms(module, params, None, batch, keys, train)
        return sums["embedding"] / weights, metrics["accuracy"][0]

    (trained, right), gradient = jax.jit(jax.value_and_grad(functools.partial(loss, train=True), has_aux=True))(params)
    evaluated, _ = jax.jit(functools.partial(loss, train=False))(params)
    return float(trained), float(right), float(evaluated), jax.device_get(jax.tree.leaves(gradient))


def main() -> None:
    objective = EmbeddingContrastive()
    ragged = examples([3, 5, 8, 4, 6, 7, 3, 9, 4, 5, 6, 6, 7, 3, 8, 4, 5, 5, 9, 6], {"side": np.tile([0, 1], 10)})
    batch = batch_of(objective, ragged, [*ROWS, [-1] * 4])
    encoder = make_step(dropout=0.1).loss.model.config
    shapes = batches.param_shapes(objective, encoder, batch)
    params = batches.filled(shapes)
    loss, right, evaluated, gradient = plain(make_step(dropout=0.1), params, batch)
    results = {"plain": {"loss": loss, "evaluated": evaluated, "right": right}}
    for name, choices in LAYOUTS.items():
        loss_8, right_8, evaluated_8, gradient_8 = measure(make_step(dropout=0.1, **choices), params, batch)
        norm = np.sqrt(sum(np.sum(leaf**2) for leaf in gradient))
        results[name] = {
            "loss": abs(loss_8 - loss),
            "evaluated": abs(evaluated_8 - evaluated),
            "right": abs(right_8 - right),
            "gradient": float(np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(gradient, gradient_8))) / norm),
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
