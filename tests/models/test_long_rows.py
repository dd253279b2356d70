"""Attention of long rows in parts, as a CPU computes it, against plain attention as a whole."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import kernels, long_rows
from bertjax.models.attention import attend_plainly
from bertjax.models.config import Execution
from bertjax.models.encoder import Encoder
from bertjax.models.kernels import AttentionInputs
from bertjax.models.visibility import Visibility
from tests import batches

B, T, H, C = 2, 512, 2, 8
COLUMNS_T = jnp.arange(T)
# Rows of three examples and padding; the second row ends with an example, so its last block reaches beyond the row.
EXAMPLES_BT = jnp.stack([jnp.searchsorted(jnp.array(ends), COLUMNS_T, side="right") for ends in ([90, 400], [7, 8])])
EXAMPLES_BT = jnp.where((COLUMNS_T < 500) | (jnp.arange(B)[:, None] > 0), EXAMPLES_BT + 1, 0)
KEYS = jax.random.split(jax.random.key(0), B)


def local(window: int) -> dict:
    """What a local layer of a stack has, where the number is traced."""
    return {"window": jnp.int32(window), "widest": 9}


CASES = {
    "examples": ({}, {}),
    "local": (local(9), {}),
    "global beside local": (local(jnp.iinfo(jnp.int32).max), {}),
    "local with dropout": (local(9), {"rate": 0.5, "key": KEYS}),
    "local in an order": (local(9) | {"rank_BT": COLUMNS_T + 0 * EXAMPLES_BT}, {}),
    "dropout": ({}, {"rate": 0.5, "key": KEYS}),
    "order": ({"rank_BT": (7 * COLUMNS_T) % T + 0 * EXAMPLES_BT}, {}),
    "few queries": (local(9), {"columns_BQ": jnp.array([[3, 99, 511], [0, 1, 2]])}),
    "few queries with dropout": ({}, {"columns_BQ": jnp.array([[3, 99], [0, 1]]), "rate": 0.5, "key": KEYS}),
}


def in_parts(inputs: AttentionInputs) -> jax.Array:
    return long_rows.context_of(batches.ENCODER, inputs, attend_plainly)


def inputs_of(case: str) -> AttentionInputs:
    visible, others = CASES[case]
    query, key, value = jax.random.normal(jax.random.key(2), (3, B, T, H, C))
    if "columns_BQ" in others:
        query = query[:, : others["columns_BQ"].shape[1]]
    return AttentionInputs(query, key, value, Visibility(EXAMPLES_BT, **visible), **others)


@pytest.mark.parametrize("case", CASES)
def test_the_context_and_its_gradients_are_those_of_the_whole(case):
    inputs = inputs_of(case)
    learned = {name: getattr(inputs, name) for name in ("query_BQHD", "key_BTHD", "value_BTHD")}

    def contexts(function):
        def number(learned):
            context = function(inputs._replace(**learned))
            return jnp.sum(jnp.sin(jnp.arange(context.size)) * context.reshape(-1)), context

        gradients, context = jax.jit(jax.grad(number, has_aux=True))(learned)
        return {"context": context, **gradients}

    expected = contexts(lambda inputs: attend_plainly(inputs)[0])
    for name, actual in contexts(in_parts).items():
        assert np.all(np.isfinite(actual)) and np.ptp(actual) > 0.1
        np.testing.assert_allclose(actual, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def shapes_of(function, inputs: AttentionInputs) -> set[tuple[int, ...]]:
    """Return the shapes of all float arrays of the compiled gradient."""
    query = inputs.query_BQHD
    compiled = jax.jit(jax.grad(lambda query: jnp.sum(function(inputs._replace(query_BQHD=query)) ** 2)))
    text = compiled.lower(query).compile().as_text()
    return {tuple(map(int, shape.split(","))) for shape in re.findall(r"f32\[([\d,]+)\]", text)}


def largest(shapes) -> int:
    return max(map(np.prod, shapes))


def test_a_local_layer_has_no_scores_of_whole_rows():
    """The number of the layer is a constant here, so the compiler keeps the branch of local layers alone."""
    inputs = inputs_of("local")
    assert largest(shapes_of(in_parts, inputs)) < T * T / 2


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, kernels.SHORTEST_IN_PARTS - 1, kernels.SHORTEST_IN_PARTS, 513])
def test_arrays_of_numpy_and_jax_give_outside_of_jit_what_they_give_inside(tokens):
    encoder = Encoder(dataclasses.replace(batches.ENCODER, max_positions=513))
    tokens_BT = np.arange(2 * tokens).reshape(2, tokens) % batches.ENCODER.vocab_size
    examples_BT = (np.arange(tokens) < [[tokens], [tokens // 2 + 1]]).astype(np.int32)
    params = encoder.init(jax.random.key(0), jnp.asarray(tokens_BT))

    def hidden(tokens_BT, segments_BT, examples_BT):
        return encoder.apply(params, tokens_BT, segments_BT, examples_BT=examples_BT).hidden

    arrays = tokens_BT, examples_BT * 0, examples_BT
    expected_BTD = jax.jit(hidden)(*arrays)
    for own in (arrays, tuple(map(jnp.asarray, arrays))):
        np.testing.assert_allclose(hidden(*own), expected_BTD, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_no_layer_keeps_its_scores_in_a_scanned_stack(remat):
    """`dots` saves products of two matrices without a batch, such as those of one head; it takes the whole."""
    config = dataclasses.replace(batches.ENCODER, layers=3, max_positions=T, execution=Execution(remat=remat))
    tokens_BT = jnp.zeros((B, T), jnp.int32)
    params = Encoder(config).init(jax.random.key(0), tokens_BT)

    def number(params, examples_BT):
        return jnp.sum(Encoder(config).apply(params, tokens_BT, examples_BT=examples_BT).hidden ** 2)

    text = jax.jit(jax.grad(number)).lower(params, EXAMPLES_BT).compile().as_text()
    sizes = [math.prod(map(int, shape.split(","))) for shape in re.findall(r"f32\[([\d,]+)\]", text)]
    assert max(sizes) < config.layers * B * config.heads * T * T
