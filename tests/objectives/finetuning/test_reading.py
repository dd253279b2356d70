"""Heads on a mix of all layers: the layers are those of the taps, and a frozen encoder does not change."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.finetuning.regression import Regression
from bertjax.objectives.finetuning.tagging import Tagging
from bertjax.runtime.errors import UserError
from bertjax.training.model_params import ModelParams
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.optim.freezing import Freezing
from bertjax.training.optim.optimizer import make_optimizer
from bertjax.training.state import new_state
from bertjax.training.step import train_chunk
from tests.objectives import groups
from tests.training import trainer

LABELS = {"label": np.array([0.0, 1.0, 0.5], np.float32)}
ENCODER = dataclasses.replace(groups.ENCODER, max_positions=groups.T, dropout=0.1)
LAYERS = ENCODER.layers


def packed(objective) -> dict:
    """Three examples in a row, one in another."""
    inputs = groups.examples([5, 9, 7], LABELS)
    inputs = dataclasses.replace(inputs, token_labels={"tag": np.arange(21) % 3})
    return groups.batch_of(objective, inputs, [[0, 1], [2, -1]])


@pytest.fixture(scope="module", params=[Regression(reads="mix"), Tagging(("A", "B", "C"), reads="mix")])
def case(request):
    """(objective, model, params, batch)."""
    objective, batch = request.param, packed(request.param)
    model = objective.model(ENCODER)
    return objective, model, objective.init(model, jax.random.key(0), batch), batch


@functools.partial(jax.jit, static_argnums=0)
def captured(model, params, batch) -> jax.Array:
    """The tap `hidden`, [L + 1, B, T, D]."""
    _, state = model.apply({"params": params}, batch, method="encode", mutable=["captured"])
    return state["captured"]["encoder"]["hidden"]


@functools.partial(jax.jit, static_argnums=(0, 1))
def outputs(objective, model, params, batch) -> jax.Array:
    return objective.apply(model, params, batch)


@pytest.mark.slow
@pytest.mark.parametrize("layer", range(LAYERS + 1))
def test_a_mix_of_one_layer_is_that_layer(case, layer):
    objective, model, params, batch = case
    mix = {"weights": 1000.0 * (np.arange(LAYERS + 1) == layer), "gamma": np.array([2.0], np.float32)}
    params = params | {"heads": params["heads"] | {"mix": mix}}
    features_BTD = 2.0 * captured(model, params, batch)[layer]
    if isinstance(objective, Regression):
        members = (batch["examples_BT"][..., None] == [1, 2]).astype(np.float32)
        features_BTD = np.einsum("btd,btn->bnd", features_BTD, members / np.maximum(members.sum(1, keepdims=True), 1))
    head = params["heads"][objective.term]
    np.testing.assert_allclose(
        outputs(objective, model, params, batch), features_BTD @ head["kernel"] + head["bias"], rtol=1e-4, atol=1e-5
    )


def test_the_mix_starts_as_the_mean_of_all_layers_and_learns(case):
    objective, model, params, batch = case
    assert not np.any(params["heads"]["mix"]["weights"]) and float(params["heads"]["mix"]["gamma"][0]) == 1.0

    @jax.jit
    @jax.grad
    def gradient_of(heads):
        sums, _ = objective.terms(model, params | {"heads": heads}, None, batch, None, False)
        return sums[objective.term]

    gradient = gradient_of(params["heads"])["mix"]
    assert np.all(gradient["weights"] != 0) and gradient["gamma"] != 0


def test_training_changes_heads_and_leaves_a_frozen_encoder_as_it_is():
    objective = Regression(reads="mix")
    batch, config = packed(objective), OptimizerConfig(frozen=("^encoder/",))
    model = objective.model(dataclasses.replace(trainer.make_step().loss.model.config, max_positions=groups.T))
    step = dataclasses.replace(
        trainer.make_step(),
        loss=dataclasses.replace(trainer.make_step().loss, objective=objective, model=model),
        optimizer=make_optimizer(config),
        model_params=ModelParams(freezing=Freezing(config.frozen)),
    )
    init = new_state(lambda key: objective.init(model, key, batch), step.optimizer)
    state = jax.jit(init)(jax.random.key(0))
    batches = jax.tree.map(lambda leaf: np.stack([leaf] * 20), batch)
    after, metrics = jax.jit(lambda state: train_chunk(step, state, None, batches))(state)
    jax.tree.map(np.testing.assert_array_equal, state["params"]["encoder"], after["params"]["encoder"])
    for before, now in zip(jax.tree.leaves(state["params"]["heads"]), jax.tree.leaves(after["params"]["heads"])):
        assert not np.array_equal(before, now)
    assert metrics["regression_loss"][-1] < metrics["regression_loss"][0]


def test_an_unknown_reading_is_refused():
    for kind in (Classification, Regression, Tagging):
        with pytest.raises(UserError, match="^objective.reads='all' is unknown; choose one of last, mix$"):
            kind(reads="all")
