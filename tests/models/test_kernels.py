"""Every implementation of attention against the plain one, on packed rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models.attention import attend
from bertjax.models.config import Execution
from bertjax.models.encoder import Encoder
from bertjax.models.kernels import attend_by_cudnn, attend_by_splash, implementation_at
from bertjax.models.visibility import Visibility
from bertjax.training.parallel.attention import choose_attention
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


def plain(query, key, value, visibility):
    return attend(query, key, value, visibility.mask_BQT(), 0.0, None)[0]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_values_and_gradients_are_those_of_the_plain_implementation(name, packed, states):
    weights = jnp.sin(jnp.arange(B * T * H * WIDTH)).reshape(B, T, H, WIDTH)

    def value_and_gradients(function):
        loss = jax.jit(jax.value_and_grad(lambda states: jnp.sum(weights * function(*states, packed))))
        return jax.jit(lambda: function(*states, packed))(), loss(states)[1]

    for actual, expected in zip(value_and_gradients(IMPLEMENTATIONS[name]), value_and_gradients(plain), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_examples_of_a_row_do_not_leak(name, packed, states):
    """The gradient of one example's values with respect to every other token is exactly zero."""
    for example in (0, 1, 3):
        own_BT = np.asarray(packed.examples_BT) == example

        def of_example(states, own_BT=own_BT):
            return jnp.sum(jnp.where(own_BT[..., None, None], IMPLEMENTATIONS[name](*states, packed), 0.0))

        gradient = np.asarray(jax.jit(jax.grad(of_example))(states))
        assert np.all(gradient[:, ~own_BT] == 0) and np.any(gradient[:, own_BT] != 0)


def test_splash_refuses_what_it_cannot_express(packed, states):
    for limited in (packed._replace(window=4), packed._replace(rank_BT=packed.examples_BT)):
        with pytest.raises(ValueError, match="attention=splash cannot express Visibility"):
            attend_by_splash(*states, limited)


def test_short_and_untiled_rows_stay_plain():
    assert [implementation_at(Execution(attention="splash"), length) for length in (128, 256, 300, 512)] == [
        "plain",
        "splash",
        "plain",
        "splash",
    ]
    assert implementation_at(Execution(), 512) == "plain"


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


def test_dropout_of_attention_needs_the_plain_implementation():
    tokens_BT, key = jnp.zeros((1, 256), jnp.int32), jax.random.key(0)
    with pytest.raises(ValueError, match="attention=splash has no dropout, and attention_dropout=0.1; use"):
        jax.eval_shape(lambda: splash_encoder(attention_dropout=0.1).init(key, tokens_BT, key=key))


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
        ("triton", "gpu", "NVIDIA H200", 0.1, "triton"),
    ],
)
def test_the_table_of_implementations(requested, backend, kind, dropout, path):
    assert choose_attention(requested, backend, kind, dropout, "bfloat16", tensor=1) == path


@pytest.mark.parametrize(
    ("requested", "backend", "kind", "dropout", "reason"),
    [
        ("splash", "tpu", "TPU v2", 0.0, "splash runs on TPU v4 and later, and this is TPU v2"),
        ("splash", "tpu", "TPU v4", 0.1, "splash has no dropout, and model.attention_dropout=0.1"),
        ("triton", "tpu", "TPU v4", 0.1, "triton runs on GPU, not on tpu"),
        ("cudnn", "cpu", "cpu", 0.0, "cudnn runs on GPU in bfloat16, not on cpu in bfloat16"),
    ],
)
def test_an_unusable_implementation_is_refused(requested, backend, kind, dropout, reason):
    with pytest.raises(UserError) as error:
        choose_attention(requested, backend, kind, dropout, "bfloat16", tensor=1)
    assert str(error.value) == f"runtime.attention={reason}; use runtime.attention=auto"


def test_heads_of_a_gpu_fill_no_tiles():
    on_gpu = {"backend": "gpu", "device_kind": "NVIDIA H200", "dropout": 0.1, "dtype": "bfloat16", "tensor": 1}
    assert choose_attention("triton", **on_gpu, width=320, heads=5) == "triton"
    with pytest.raises(UserError, match="triton takes heads of width 32, 64 or 128, and these are 8 of 96; use"):
        choose_attention("triton", **on_gpu, width=768, heads=8)


def test_splash_is_not_sharded_over_tensor():
    assert choose_attention("auto", "tpu", "TPU v4", 0.0, "bfloat16", tensor=2) == "plain"
    with pytest.raises(UserError, match=r"splash cannot be sharded over runtime.mesh.tensor=2"):
        choose_attention("splash", "tpu", "TPU v4", 0.0, "bfloat16", tensor=2)
