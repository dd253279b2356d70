"""The kernel with dropout against the plain implementation with the same draws, run without its device."""

import dataclasses
import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import attention, dropout_words, fused, kernels
from bertjax.models.attention import attend_plainly
from bertjax.models.bert import BertBlock, BertEmbeddings
from bertjax.models.blocks.modern import ModernBlock
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.encoder import Encoder
from bertjax.models.kernel_choice import choose_attention
from bertjax.models.kernels import AttentionInputs, attend_by_fused
from bertjax.models.visibility import Visibility
from bertjax.runtime.errors import UserError
from tests import batches

interpreted = functools.partial(attend_by_fused, interpret=True)


def plain(inputs):
    return attend_plainly(inputs)[0]


def packed(rows: int, tokens: int, seed: int = 0) -> jax.Array:
    """Return rows of up to four examples and padding, of any lengths."""
    starts = np.random.default_rng(seed).integers(0, tokens, (rows, 4, 1))
    return jnp.asarray((1 + np.sum(starts <= np.arange(tokens), axis=1)) % 5, jnp.int32)


def assert_equal_to_plain(heads: int, width: int, visibility: Visibility, rate: float) -> None:
    """Compare values and gradients in float32."""
    rows, tokens = visibility.examples_BT.shape
    shape = (4, rows, tokens, heads, width)
    *states, weights = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
    keys = jax.random.split(jax.random.key(1), rows)

    def value_and_gradients(function):
        def run(states, visibility):
            context, pull = jax.vjp(lambda *states: function(AttentionInputs(*states, visibility, rate, keys)), *states)
            return context, *pull(weights)

        return jax.jit(run)(states, visibility)

    for actual, expected in zip(value_and_gradients(interpreted), value_and_gradients(plain), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@hypothesis.settings(max_examples=3, deadline=None, derandomize=True)
@hypothesis.given(
    tokens=st.sampled_from([128, 256]),
    heads=st.sampled_from([(4, 32), (2, 64), (1, 128), (3, 128)]),
    rate=st.sampled_from([0.1, 0.5, 0.0, 0.001]),
    window=st.sampled_from([None, 0, 3, 200, jnp.iinfo(jnp.int32).max]),
    seed=st.integers(0, 9),
)
def test_values_and_gradients_are_those_of_the_plain_implementation(tokens, heads, rate, window, seed):
    window = None if window is None else jnp.int32(window)
    assert_equal_to_plain(*heads, Visibility(packed(1, tokens, seed), window), rate)


def test_long_rows_are_computed_in_blocks_of_queries(monkeypatch):
    monkeypatch.setattr(fused, "_LOGITS", 256 * 128)
    assert_equal_to_plain(2, 64, Visibility(packed(2, 256), jnp.int32(40)), 0.1)


@pytest.mark.parametrize("window, rate", [(None, 0.1), (40, 0.5), (150, 0.0)])
def test_long_rows_are_computed_in_groups_of_keys(monkeypatch, window, rate):
    """With a running softmax, and without the groups that a block of queries does not see."""
    monkeypatch.setattr(dropout_words, "LONGEST_GROUP", 256)
    monkeypatch.setattr(dropout_words, "GROUP", 128)
    monkeypatch.setattr(fused, "_LOGITS", 128 * 128)
    assert_equal_to_plain(2, 64, Visibility(packed(1, 512), None if window is None else jnp.int32(window)), rate)


WIDE = dataclasses.replace(
    batches.ENCODER,
    layers=2,
    width=128,
    max_positions=128,
    dropout=0.1,
    attention_dropout=0.1,
    block=ModernBlock(window=5, global_every=2),
    embeddings=BertEmbeddings(positions="none"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "reads, remat, longest",
    [
        (None, "dots", 128),
        (np.array([[3, 95, 127], [0, 1, 1]]), "full", 128),
        (np.array([[3, 95], [1, 1]]), "dots", 64),
    ],
)
def test_an_encoder_with_windows_and_dropout_is_that_of_the_plain_implementation(reads, remat, longest, monkeypatch):
    """All positions, or only a few at the last layer. It is then plain in both and draws what the kernel would, or in
    long rows computes all positions by the kernel."""
    monkeypatch.setattr(kernels, "LONGEST_WITH_PLAIN_QUERIES", longest)
    config = dataclasses.replace(WIDE, execution=Execution(attention="fused", remat=remat))
    tokens_BT = jnp.asarray(np.random.default_rng(0).integers(7, 100, (2, 128)))
    shapes = jax.eval_shape(Encoder(config).init, jax.random.key(0), tokens_BT)
    params, keys = batches.filled(shapes["params"], 0.1), jax.random.split(jax.random.key(2), 2)

    def value_and_gradient():
        def number(params):
            encoder = Encoder(config)
            encoded = encoder.apply({"params": params}, tokens_BT, examples_BT=packed(2, 128), read_BK=reads, key=keys)
            return jnp.sum(jnp.sin(3 * encoded.hidden)), encoded.hidden

        return jax.jit(jax.grad(number, has_aux=True))(params)

    monkeypatch.setattr(kernels, "attend_by_fused", interpreted)
    actual = value_and_gradient()
    monkeypatch.setattr(attention, "implementation_at", lambda *_: kernels.PLAIN)
    expected = value_and_gradient()
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected))
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * largest), actual, expected
    )


@pytest.mark.parametrize(
    "model, expected",
    [
        ({}, "fused"),
        ({"attention_dropout": 0.0}, "fused"),
        (batches.LOCAL, "fused"),
        ({"width": 384, "heads": 12}, "fused"),
        ({"width": 320, "heads": 5}, "plain"),
        ({"width": 768, "heads": 8}, "plain"),
        ({"width": 768, "heads": 8, "attention_dropout": 0.0}, "splash"),
        ({"device_kind": "TPU v3"}, "plain"),
        ({"tensor": 2}, "plain"),
        ({"direction": "left_to_right"}, "plain"),
        (batches.RELATIVE, "plain"),
        (batches.DISENTANGLED, "plain"),
        ({"block": BertBlock(("next",))}, "plain"),
    ],
)
def test_auto_takes_the_fused_kernel_where_it_serves(model, expected):
    model = {"backend": "tpu", "device_kind": "TPU v4", "tensor": 1} | model
    where = {name: model.pop(name) for name in ("backend", "device_kind", "tensor")}
    encoder = EncoderConfig(layers=1, **model)
    assert choose_attention("auto", encoder, **where) == expected
    if expected != "fused":
        with pytest.raises(UserError, match=r"^runtime.attention=fused .*; use runtime.attention=auto$"):
            choose_attention("fused", encoder, **where)
