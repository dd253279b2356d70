"""Layers: GELU, layer norm, and dense."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.layers import Dense, gelu, gelu_tanh, layer_norm


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
