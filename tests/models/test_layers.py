"""Layers: dropout, GELU, layer norm, and dense."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.activations import gelu, gelu_tanh
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.layers import Dense, dropout
from bertjax.models.norms import layer_norm


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
def test_dropout_keeps_a_multiple_of_a_256th_and_the_mean(rate):
    x = jnp.ones((500, 1003))
    threshold = round((1 - rate) * 256)
    dropped = np.asarray(dropout(x, rate, jax.random.key(0)))
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(256 / threshold)}
    share = threshold / 256
    deviation = math.sqrt(share * (1 - share) / dropped.size)
    assert abs((dropped > 0).mean() - share) < 4 * deviation
    assert abs(dropped.mean() - 1) < 4 * deviation / share


def test_dropout_decides_every_element_independently():
    """The four elements that share a random word are as independent as any others."""
    dropped = np.asarray(dropout(jnp.ones((20_000, 8)), 0.5, jax.random.key(1))) > 0
    correlation = np.corrcoef(dropped.T) - np.eye(8)
    assert np.abs(correlation).max() < 4 / math.sqrt(20_000)


def test_dropout_without_key_or_rate_is_the_identity():
    x = jnp.arange(5.0)
    assert dropout(x, 0.5, None) is x and dropout(x, 0.0, jax.random.key(0)) is x


def test_dropout_keeps_the_dtype_and_scales_the_gradient():
    x = jnp.ones((7, 5), jnp.bfloat16)
    assert dropout(x, 0.1, jax.random.key(0)).dtype == jnp.bfloat16
    key, x = jax.random.key(2), jnp.ones((7, 5))
    np.testing.assert_array_equal(jax.grad(lambda x: dropout(x, 0.5, key).sum())(x), dropout(x, 0.5, key))


def test_gelu_is_the_erf_form():
    x = np.linspace(-6, 6, 101, dtype=np.float32)
    expected = [value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x]
    np.testing.assert_allclose(gelu(x), expected, rtol=1e-5, atol=1e-6)


def test_the_approximation_of_gelu_is_close_to_it_and_is_that_of_jax():
    x = np.linspace(-6, 6, 1001, dtype=np.float32)
    np.testing.assert_allclose(gelu_tanh(x), jax.nn.gelu(x, approximate=True), rtol=1e-5, atol=1e-6)
    assert 1e-4 < np.abs(gelu_tanh(x) - gelu(x)).max() < 1e-3


def test_layer_norm_takes_its_statistics_in_float32():
    """bfloat16 has a step of 0.5 at 100: statistics taken in it would be far off."""
    x = (100 + np.arange(64) % 7).astype(jnp.bfloat16)[None]
    norm = layer_norm(EncoderConfig(execution=Execution(dtype="bfloat16")))
    output, variables = norm.init_with_output(jax.random.key(0), x)
    exact = (x - np.float64(x).mean()) / np.float64(x).std()
    np.testing.assert_allclose(np.float64(output), np.float64(exact), atol=0.01)
    assert output.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}


def test_dense_is_a_product_on_the_last_axis_and_starts_as_published():
    x = np.random.default_rng(0).normal(size=(2, 3, 200)).astype(np.float32)
    output, variables = Dense(EncoderConfig(), 300).init_with_output(jax.random.key(0), x)
    kernel, bias = variables["params"]["kernel"], variables["params"]["bias"]
    np.testing.assert_allclose(output, x @ np.asarray(kernel) + np.asarray(bias), rtol=1e-4, atol=1e-5)
    assert np.abs(bias).max() == 0
    # A normal distribution of deviation 0.02 before it is cut at two deviations, which leaves 0.8796 of it.
    assert abs(float(kernel.std()) / (0.02 * 0.8796) - 1) < 0.01 and 0.0399 < np.abs(kernel).max() <= 0.04
