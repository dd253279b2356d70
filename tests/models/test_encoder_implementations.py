"""An encoder computes the same with every implementation of attention."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import kernels
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.encoder import Encoder
from tests import batches

T = 256
CONFIG = dataclasses.replace(batches.ENCODER, max_positions=T)
INTERPRETED = {
    "splash": functools.partial(kernels.attend_by_splash, interpret=True),
    "cudnn": functools.partial(kernels.attend_by_cudnn, implementation="xla"),
}


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch):
    """Run the programs of the kernels without their hardware."""
    for path, function in INTERPRETED.items():
        monkeypatch.setattr(kernels, f"attend_by_{path}", function)


@pytest.fixture(scope="module")
def batch() -> dict[str, np.ndarray]:
    """A row of three examples and padding, and a row of padding only."""
    columns = np.arange(T)
    starts, real_T = np.array([0, 90, 131]), columns < 250
    examples_T = np.where(real_T, np.searchsorted(starts, columns, side="right"), 0)
    positions_T = np.where(real_T, columns - starts[np.maximum(examples_T, 1) - 1], 0)
    draw = np.random.default_rng(0)
    return {
        "tokens_BT": np.stack([np.where(real_T, draw.integers(7, CONFIG.vocab_size, T), 0), np.zeros(T, int)]),
        "segments_BT": np.zeros((2, T), int),
        "positions_BT": np.stack([positions_T, np.zeros(T, int)]),
        "examples_BT": np.stack([examples_T, np.zeros(T, int)]),
        "summary_positions_BN": np.stack([starts, np.full(3, -1)]),
    }


@pytest.fixture(scope="module")
def params() -> dict:
    shapes = jax.eval_shape(Encoder(CONFIG).init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    return batches.filled(shapes["params"])


def value_and_gradient(config: EncoderConfig, params: dict, batch: dict, read_BK: np.ndarray | None):
    """Return hidden states, [CLS] outputs, and the gradient of a number in which each of them counts differently."""

    def number(params):
        encoded = Encoder(config).apply({"params": params}, *batch.values(), read_BK=read_BK)
        return jnp.sum(jnp.sin(3 * encoded.hidden)) + jnp.sum(encoded.pooled_BND**2), encoded

    gradient, encoded = jax.jit(jax.grad(number, has_aux=True))(params)
    return encoded.hidden, encoded.pooled_BND, gradient


@pytest.mark.slow
@pytest.mark.parametrize("reads, remat", [("all positions", "none"), ("few", "full")])
@pytest.mark.parametrize("path", INTERPRETED)
def test_hidden_states_and_gradients_are_those_of_the_plain_implementation(path, reads, remat, params, batch):
    read_BK = None if reads == "all positions" else np.array([[3, 95, 131, 249], [0, 1, 2, 3]])
    by_kernel = dataclasses.replace(CONFIG, execution=Execution(attention=path, remat=remat))
    actual = value_and_gradient(by_kernel, params, batch, read_BK)
    expected = value_and_gradient(CONFIG, params, batch, read_BK)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected))

    def compare(actual, expected):
        assert np.all(np.isfinite(actual))
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6 * largest)

    jax.tree.map(compare, actual, expected)


@pytest.mark.parametrize("path", INTERPRETED)
def test_a_head_mask_acts_on_kernels_too(path, params, batch):
    head_mask_LH = jnp.ones((CONFIG.layers, CONFIG.heads)).at[1, 0].set(0.0)

    def hidden(config):
        variables = {"params": params, "taps": {"head_mask": head_mask_LH}}
        return jax.jit(lambda: Encoder(config).apply(variables, *batch.values()))().hidden

    by_kernel = dataclasses.replace(CONFIG, execution=Execution(attention=path))
    np.testing.assert_allclose(hidden(by_kernel), hidden(CONFIG), rtol=1e-4, atol=1e-5)
