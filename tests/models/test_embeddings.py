"""Embeddings of another width than the encoder, without segments, from a later position on, and shared by encoders."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.models.bert import BertEmbeddings
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.objectives.pretraining.sentence_pairs import BERT
from tests import batches
from tests.models import reference

NARROW = dataclasses.replace(batches.ENCODER, embeddings=BertEmbeddings(8))


def filled(config: EncoderConfig) -> dict:
    return batches.filled(batches.param_shapes(BERT(), config))


def test_factorized_embeddings_are_projected_after_their_norm():
    """An encoder that is given the projected embeddings computed in numpy gives the same states."""
    params, batch = filled(NARROW), batches.make(2)
    encoder, tables = params["encoder"], params["encoder"]["embeddings"]
    summed_BTE = tables["word"][batch["tokens_BT"]] + tables["position"][batch["positions_BT"]]
    summed_BTE = summed_BTE + tables["segment"][batch["segments_BT"]]
    normed_BTE = reference.norm(summed_BTE, tables["norm"], NARROW.norm_epsilon)
    expected_BTD = normed_BTE @ encoder["projection"]["kernel"] + encoder["projection"]["bias"]
    core = (batch[name] for name in ("tokens_BT", "segments_BT", "positions_BT", "examples_BT"))
    _, state = jax.jit(functools.partial(Encoder(NARROW).apply, mutable=["captured"]))({"params": encoder}, *core)
    np.testing.assert_allclose(state["captured"]["hidden"][0], expected_BTD, rtol=1e-5, atol=1e-6)


class Two(nn.Module):
    """A narrow encoder that reads the embeddings of a wider one."""

    wide: EncoderConfig
    narrow: EncoderConfig

    def setup(self):
        self.encoder = Encoder(self.wide)
        self.generator = Encoder(self.narrow, embeddings=self.encoder.embeddings)

    def __call__(self, tokens_BT, scale_wide=1.0, scale_narrow=1.0):
        narrow, wide = self.generator(tokens_BT).hidden, self.encoder(tokens_BT).hidden
        return scale_wide * jnp.sum(jnp.sin(3 * wide)) + scale_narrow * jnp.sum(jnp.sin(3 * narrow))


def test_two_encoders_share_embeddings_and_their_gradients_are_summed():
    module = Two(
        batches.ENCODER, dataclasses.replace(batches.ENCODER, width=8, feedforward=16, embeddings=BertEmbeddings(16))
    )
    tokens_BT = np.arange(10, 26).reshape(2, 8)
    params = batches.filled(jax.eval_shape(module.init, jax.random.key(0), tokens_BT)["params"])
    assert "embeddings" in params["encoder"] and "embeddings" not in params["generator"]
    assert "projection" in params["generator"] and "projection" not in params["encoder"]

    @jax.jit
    def gradient(wide, narrow):
        grads = jax.grad(lambda params: module.apply({"params": params}, tokens_BT, wide, narrow))(params)
        return grads["encoder"]["embeddings"]["word"]

    one, other, both = gradient(1.0, 0.0), gradient(0.0, 1.0), gradient(1.0, 1.0)
    assert np.abs(one).max() > 1e-3 and np.abs(other).max() > 1e-3
    np.testing.assert_allclose(one + other, both, rtol=1e-4, atol=1e-5)
