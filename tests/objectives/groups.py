"""Batches of small ragged examples with one label each, and small encoders, for objectives on groups of examples."""

import dataclasses
import functools

import jax
import numpy as np

from bertjax.data.batch import core, place
from bertjax.data.examples import Ragged
from bertjax.objectives.base import Objective
from bertjax.objectives.host import regroup
from tests import batches, ragged

ENCODER = dataclasses.replace(batches.ENCODER, init_stddev=0.5)
T = 40


def examples(lengths: list[int], labels: dict[str, np.ndarray]) -> Ragged:
    """Return examples [CLS] ... [SEP] of these lengths, with ordinary ids of `batches.ENCODER`."""
    vocabulary = dataclasses.replace(ragged.VOCABULARY, size=ENCODER.vocab_size, continuation_ids=())
    made = ragged.random(np.array(lengths), np.arange(len(lengths)), vocabulary)
    return dataclasses.replace(made, labels=labels)


def batch_of(objective: Objective, inputs: Ragged, rows_BN) -> dict[str, np.ndarray]:
    placed = place(inputs, np.array(rows_BN), T, ragged.VOCABULARY)
    return core(placed) | objective.features(placed, ragged.first_epoch(inputs))


def module_and_params(objective: Objective, batch: dict) -> tuple:
    module = objective.model(ENCODER)
    shapes = batches.param_shapes(objective, ENCODER, batch)
    return module, batches.filled(shapes)


@functools.partial(jax.jit, static_argnums=(0, 1))
def terms_of(objective: Objective, module, params: dict, batch: dict):
    """Return terms and metrics without dropout."""
    return objective.terms(module, params, None, batch, jax.random.key(0), False)


def outputs_of(objective: Objective, module, params: dict, batch: dict) -> dict[str, np.ndarray]:
    """Return outputs by example, without padding."""
    outputs = jax.jit(functools.partial(objective.outputs, module))(params, batch)
    return regroup(outputs, batch)
