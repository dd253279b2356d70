"""A small BERT and its step, on hand-made batches."""

import dataclasses
import functools

import jax
import numpy as np
from jax.sharding import Mesh

from bertjax.objectives.bert import BERT
from bertjax.training import schedules
from bertjax.training.config import MeshConfig, OptimizerConfig
from bertjax.training.optimizer import adamw
from bertjax.training.sharding import ENCODER_RULES, HEAD_RULES, make_mesh, put_batches, replicated
from bertjax.training.state import abstract_state, init_state, new_state
from bertjax.training.step import StepContext, train_chunk
from tests import batches

STEPS = 20


def _learning_rate(step: jax.Array) -> jax.Array:
    return schedules.linear(step, 1e-2, 5, STEPS)


@functools.cache
def context(dropout: float = 0.0, micro_batches: int = 1, max_skipped: int = 0) -> StepContext:
    encoder = dataclasses.replace(batches.ENCODER, dropout=dropout, attention_dropout=dropout)
    return StepContext(
        objective=BERT(),
        module=BERT().module(encoder),
        optimizer=adamw(OptimizerConfig()),
        learning_rate=_learning_rate,
        seed=0,
        micro_batches=micro_batches,
        max_skipped=max_skipped,
    )


@functools.cache
def _compiled(of: StepContext, mesh: Mesh):
    """(the state at step 0, a function that trains a chunk), compiled once for all tests."""
    create = new_state(of.module, of.optimizer, batches.make(1))
    abstract = abstract_state(create, mesh, (*ENCODER_RULES, *HEAD_RULES))
    layout = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    run = jax.jit(functools.partial(train_chunk, of), out_shardings=(layout, replicated(mesh)))
    return init_state(create, abstract, of.seed), run


class Trainer:
    """A state, and steps that move it on.

    Args:
      of: what is trained.
      mesh: on which devices; the first one by default.
    """

    def __init__(self, of: StepContext, mesh: Mesh | None = None):
        self._mesh = mesh or make_mesh(MeshConfig(), jax.devices()[:1])
        state, self._run = _compiled(of, self._mesh)
        self.state = dict(state)

    def train(self, *steps: dict, steps_per_call: int = 1) -> dict[str, np.ndarray]:
        """Trains on one batch after the other; returns the metrics, [steps] each."""
        calls = []
        for first in range(0, len(steps), steps_per_call):
            batch = put_batches(steps[first : first + steps_per_call], self._mesh)
            self.state, metrics = self._run(self.state, None, batch)
            calls.append(jax.device_get(metrics))
        return {name: np.concatenate([metrics[name] for metrics in calls]) for name in calls[0]}

    @property
    def params(self) -> dict:
        return jax.device_get(self.state["params"])
