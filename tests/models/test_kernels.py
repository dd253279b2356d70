"""Every implementation of attention against the plain one, on packed rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import kernels
from bertjax.models.attention import attend, attend_plainly
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.dropout import seeds_of
from bertjax.models.encoder import Encoder
from bertjax.models.kernel_choice import choose_attention
from bertjax.models.kernels import (
    CUDNN,
    FUSED,
    SPLASH,
    AttentionInputs,
    CannotCompute,
    attend_by_cudnn,
    attend_by_fused,
    attend_by_kernel,
    attend_by_splash,
)
from bertjax.models.visibility import Visibility
from tests import batches

B, T, H, WIDTH = 2, 256, 2, 64
IMPLEMENTATIONS = {
    "splash": functools.partial(attend_by_splash, interpret=True),
    "cudnn": functools.partial(attend_by_cudnn, implementation="xla"),
}


@pytest.fixture(scope="module")
def packed():
    """Two rows of three examples each and padding at the end."""
    columns = np.arange(T)
    examples_BT = np.stack([1 + (columns >= 100) + (columns >= 130), 1 + (columns >= 7) + (columns >= 8)])
    return Visibility(jnp.asarray(np.where(columns < 240, examples_BT, 0), jnp.int32))


@pytest.fixture(scope="module")
def states():
    return jnp.asarray(np.random.default_rng(0).normal(size=(3, B, T, H, WIDTH)), jnp.float32)


def plain(inputs):
    return attend_plainly(inputs)[0]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_values_and_gradients_are_those_of_the_plain_implementation(name, packed, states):
    weights = jnp.sin(jnp.arange(B * T * H * WIDTH)).reshape(B, T, H, WIDTH)

    def value_and_gradients(function):
        loss = jax.jit(jax.value_and_grad(lambda states: jnp.sum(weights * function(AttentionInputs(*states, packed)))))
        return jax.jit(lambda: function(AttentionInputs(*states, packed)))(), loss(states)[1]

    for actual, expected in zip(value_and_gradients(IMPLEMENTATIONS[name]), value_and_gradients(plain), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_examples_of_a_row_do_not_leak(name, packed, states):
    """The gradient of one example's values with respect to every other token is exactly zero."""
    for example in (0, 1, 3):
        own_BT = np.asarray(packed.examples_BT) == example

        def of_example(states, own_BT=own_BT):
            return jnp.sum(
                jnp.where(own_BT[..., None, None], IMPLEMENTATIONS[name](AttentionInputs(*states, packed)), 0.0)
            )

        gradient = np.asarray(jax.jit(jax.grad(of_example))(states))
        assert np.all(gradient[:, ~own_BT] == 0) and np.any(gradient[:, own_BT] != 0)


# A value with an effect for every field that is optional. A new field needs one here.
PASSED = {
    "examples_BT": jnp.asarray(np.repeat([[1, 2, 0]], [50, 70, 8], axis=1)),
    "window": jnp.int32(9),
    "widest": 9,
    "rank_BT": jnp.arange(128)[None],
    "end_BT": 50 + jnp.arange(128)[None],
    "rate": 0.5,
    "key": jax.random.split(jax.random.key(3), 1),
    "bias_BHQT": jax.random.normal(jax.random.key(1), (1, 2, 128, 128)),
    "fixed_heads": ("next",),
    "columns_BQ": jnp.array([[3, 99]]),
    "rank_BQ": jnp.array([[60, 2]]),
}
ALWAYS = ("query_BQHD", "key_BTHD", "value_BTHD", "visibility")
COMPUTED = {
    FUSED: {"examples_BT", "window", "widest", "rate", "key", "columns_BQ"},
    SPLASH: {"examples_BT", "key", "columns_BQ"},
    CUDNN: {"examples_BT", "window", "widest", "rank_BT", "key", "columns_BQ"},
}
# What a field has an effect with.
TOGETHER = {
    "rate": ("key",),
    "key": (),
    "rank_BQ": ("columns_BQ", "rank_BT"),
    "end_BT": ("rank_BT",),
    "widest": ("window",),
}


@pytest.mark.parametrize("field", sorted({*AttentionInputs._fields, *Visibility._fields} - {*ALWAYS}))
@pytest.mark.parametrize("implementation", COMPUTED)
def test_a_kernel_computes_what_is_passed_or_refuses_it(implementation, field, monkeypatch):
    monkeypatch.setattr(kernels, "attend_by_fused", functools.partial(attend_by_fused, interpret=True))
    query, key, value = np.random.default_rng(0).normal(size=(3, 1, 128, 2, 64)).astype(np.float32)
    passed = {name: PASSED[name] for name in (field, *TOGETHER.get(field, ()))}
    if field == "fixed_heads":
        query, key = query[:, :, 1:], key[:, :, 1:]
    if "columns_BQ" in passed:
        query = query[:, PASSED["columns_BQ"][0]]
    everything = {"examples_BT": jnp.ones((1, 128), jnp.int32)}
    visible = everything | {name: passed.pop(name) for name in Visibility._fields if name in passed}
    inputs = AttentionInputs(query, key, value, Visibility(**visible), **passed)
    if field not in COMPUTED[implementation]:
        with pytest.raises(CannotCompute, match=f"^attention={implementation} does not compute .*; use attention=plai"):
            jax.eval_shape(lambda: attend_by_kernel(implementation, inputs))
        return
    expected = attend_plainly(inputs)[0]
    np.testing.assert_allclose(attend_by_kernel(implementation, inputs), expected, rtol=1e-4, atol=1e-5)
    if field not in ("key", "columns_BQ"):
        without = AttentionInputs(query, key, value, Visibility(**everything))
        assert np.abs(attend_plainly(without)[0] - expected).max() > 0.01


def splash_encoder(**choices) -> Encoder:
    config = dataclasses.replace(batches.ENCODER, max_positions=256, execution=Execution(attention="splash"), **choices)
    return Encoder(config)


def test_captured_attention_needs_the_plain_implementation():
    tokens_BT = jnp.zeros((1, 256), jnp.int32)
    shapes = jax.eval_shape(splash_encoder().init, jax.random.key(0), tokens_BT)
    apply = functools.partial(splash_encoder().apply, mutable=["captured"])
    with pytest.raises(
        ValueError, match="^attention=splash keeps no probabilities to capture; build the encoder with "
    ):
        jax.eval_shape(apply, shapes, tokens_BT)


def encoder(**choices) -> EncoderConfig:
    """A layer of BERT-base."""
    return EncoderConfig(layers=1, execution=Execution("bfloat16"), **choices)


@pytest.mark.parametrize(
    ("requested", "backend", "kind", "dropout", "path"),
    [
        ("auto", "tpu", "TPU v5 lite", 0.0, "fused"),
        ("auto", "tpu", "TPU v4", 0.1, "fused"),
        ("auto", "tpu", "TPU v3", 0.0, "plain"),
        ("auto", "gpu", "NVIDIA H200", 0.0, "plain"),
        ("auto", "cpu", "cpu", 0.0, "plain"),
        ("plain", "tpu", "TPU v4", 0.0, "plain"),
        ("splash", "tpu", "TPU v6 lite", 0.0, "splash"),
        ("cudnn", "gpu", "NVIDIA H200", 0.0, "cudnn"),
    ],
)
def test_the_table_of_implementations(requested, backend, kind, dropout, path):
    assert choose_attention(requested, encoder(attention_dropout=dropout), backend, kind) == path


def test_dropout_acts_on_the_probabilities_but_not_on_those_returned():
    draw = np.random.default_rng(0)
    query, key, value = draw.normal(size=(3, 1, 6, 2, 4)).astype(np.float32)
    everything = jnp.ones((1, 6, 6), bool)
    plain, probabilities = attend(query, key, value, everything, 0.5, None)
    dropped, unchanged = attend(query, key, value, everything, 0.5, seeds_of(jax.random.key(0), 1, 2))
    np.testing.assert_array_equal(probabilities, unchanged)
    np.testing.assert_allclose(unchanged.sum(axis=-1), 1.0, rtol=1e-6)
    assert np.abs(plain - dropped).max() > 0.1


CONFIG = dataclasses.replace(batches.ENCODER, max_positions=T)


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch):
    """Run the programs of the kernels without their hardware."""
    for path, function in IMPLEMENTATIONS.items():
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
@pytest.mark.parametrize("path", IMPLEMENTATIONS)
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
