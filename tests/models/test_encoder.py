"""The encoder: execution settings, padding, packed rows, and read positions."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.bert import BertEmbeddings
from bertjax.models.config import Execution
from bertjax.models.encoder import Encoder
from tests import batches

CONFIG = batches.ENCODER
CORE = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT", "summary_positions_BN")


@pytest.fixture(scope="module")
def params() -> dict:
    shapes = jax.eval_shape(Encoder(CONFIG).init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    return batches.filled(shapes["params"])


@pytest.fixture(scope="module")
def batch() -> dict:
    return batches.make(3)


@functools.partial(jax.jit, static_argnames="config")
def encode(params, batch, config=CONFIG, **arguments):
    return Encoder(config).apply({"params": params}, *(batch[name] for name in CORE), **arguments)


@functools.partial(jax.jit, static_argnums=0)
def fresh(config):
    return Encoder(config).init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]


def close(actual, expected, tolerance=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), actual, expected)


def value_and_gradient(config, params, batch, **taps):
    """Return a number in which every hidden state counts differently, and its gradient."""

    def number(params):
        encoded = encode(params, batch, config, **taps)
        visible = encoded.hidden * (batch["examples_BT"][..., None] if "read_BK" not in taps else 1.0)
        return jnp.sum(jnp.sin(3 * visible)) + jnp.sum(encoded.pooled_BND**2)

    return jax.jit(jax.value_and_grad(number))(params)


@pytest.mark.parametrize("unroll", [False, True])
def test_only_what_xla_could_merge_is_protected_from_it(params, batch, unroll):
    """In a loop a barrier would be a copy of everything that is kept, and without one an unrolled pass keeps it all."""
    config = dataclasses.replace(CONFIG, execution=Execution(unroll=unroll, remat="dots"))
    gradient = jax.grad(lambda params: jnp.sum(encode(params, batch, config).hidden))
    assert ("optimization_barrier" in jax.jit(gradient).lower(params).as_text()) is unroll


def test_what_is_kept_of_a_layer(params, batch):
    """Under `dots` with dropout: its input, queries, keys, values, both sums before a norm, and what GELU reads."""
    config = dataclasses.replace(CONFIG, dropout=0.1, attention_dropout=0.1, execution=Execution(remat="dots"))
    gradient = jax.grad(lambda params: jnp.sum(encode(params, batch, config, key=jax.random.key(3)).hidden))
    [forward, _] = [one for one in equations(jax.make_jaxpr(gradient)(params).jaxpr) if one.primitive.name == "scan"]
    shapes = [value.aval.shape for value in forward.outvars]
    stacked = sorted(shape[-1] for shape in shapes if shape[:-1] == (config.layers, *batch["tokens_BT"].shape))
    assert stacked == [config.width] * 6 + [config.feedforward]
    assert len(stacked) == len(shapes) - 1  # the other one is the last layer's output


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            yield from equations(value.jaxpr) if hasattr(value, "jaxpr") else ()


def test_rows_longer_than_the_position_table_are_refused(params):
    long = jnp.ones((2, CONFIG.max_positions + 1), jnp.int32)
    with pytest.raises(ValueError, match="^rows of 17 tokens exceed the 16 positions; cut them"):
        Encoder(CONFIG).apply({"params": params}, long)
    packed = jnp.arange(long.shape[1]) % CONFIG.max_positions
    Encoder(CONFIG).apply({"params": params}, long, positions_BT=jnp.broadcast_to(packed, long.shape))


def test_a_task_embedding_is_added_to_every_token(batch):
    config = dataclasses.replace(CONFIG, embeddings=BertEmbeddings(task_types=3))
    one, two = (dataclasses.replace(config, execution=Execution(task_type=number)) for number in (1, 2))
    shapes = jax.eval_shape(Encoder(config).init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    params = batches.filled(shapes["params"])
    _, gradient = value_and_gradient(one, params, batch)
    assert np.abs(gradient["embeddings"]["task"]).max(axis=1).astype(bool).tolist() == [False, True, False]
    embeddings = params["embeddings"]
    assert np.abs(encode(params, batch, two).hidden - encode(params, batch, one).hidden).max() > 0.1
    summed = {
        name: table + embeddings["task"][1] if name == "position" else table
        for name, table in embeddings.items()
        if name != "task"
    }
    close(encode(params | {"embeddings": summed}, batch).hidden, encode(params, batch, one).hidden, 1e-5)


def test_layers_start_different():
    params = fresh(CONFIG)
    kernels = params["layers"]["attention"]["query"]["kernel"]
    assert kernels.shape == (3, 16, 16) and float(jnp.abs(kernels[0] - kernels[1]).min()) > 0


def test_tokens_of_the_padding_are_never_seen(params, batch):
    real_BT = batch["examples_BT"] > 0
    other = batch | {
        "tokens_BT": np.where(real_BT, batch["tokens_BT"], 55),
        "segments_BT": np.where(real_BT, batch["segments_BT"], 1),
        "positions_BT": np.where(real_BT, batch["positions_BT"], 9),
    }
    plain, altered = encode(params, batch), encode(params, other)
    np.testing.assert_array_equal(plain.hidden[real_BT], altered.hidden[real_BT])
    np.testing.assert_array_equal(plain.pooled_BND, altered.pooled_BND)
    assert np.abs(plain.hidden[~real_BT] - altered.hidden[~real_BT]).max() > 0.1


def test_defaults_are_one_unpadded_example_a_row(params):
    tokens_BT = np.arange(10, 26).reshape(2, 8)
    spelled_out = {
        "tokens_BT": tokens_BT,
        "segments_BT": np.zeros((2, 8), np.int32),
        "positions_BT": np.tile(np.arange(8), (2, 1)),
        "examples_BT": np.ones((2, 8), np.int32),
        "summary_positions_BN": np.zeros((2, 1), np.int32),
    }
    short = jax.jit(Encoder(CONFIG).apply)({"params": params}, tokens_BT)
    jax.tree.map(np.testing.assert_array_equal, short, encode(params, spelled_out))


def test_bfloat16_is_for_activations_only(params, batch):
    config = dataclasses.replace(CONFIG, execution=Execution(dtype="bfloat16"))
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh(config))} == {jnp.dtype("float32")}
    encoded = encode(params, batch, config)
    assert encoded.hidden.dtype == jnp.bfloat16
    _, gradient = value_and_gradient(config, params, batch)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    difference = np.float32(encoded.hidden) - np.asarray(encode(params, batch).hidden)
    assert np.sqrt((difference**2).mean()) < 0.05


def test_dropout_follows_its_key(params, batch):
    config = dataclasses.replace(CONFIG, dropout=0.1, attention_dropout=0.1)
    one, again, other = (encode(params, batch, config, key=jax.random.key(seed)).hidden for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 0.1
    np.testing.assert_array_equal(encode(params, batch, config).hidden, encode(params, batch).hidden)
