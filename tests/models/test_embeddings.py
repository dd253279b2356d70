"""Embeddings of another width than the encoder, without segments, from a later position on, and shared by encoders."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bertjax.models import vocabulary
from bertjax.models.bert import BertEmbeddingLayer, BertEmbeddings
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.runtime.errors import UserError
from bertjax.training.param_paths import path_of
from tests import batches
from tests.models import reference

NARROW = dataclasses.replace(batches.ENCODER, embeddings=BertEmbeddings(8))


def shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    params = batches.param_shapes(BERT(), config)
    return {path_of(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def filled(config: EncoderConfig) -> dict:
    return batches.filled(batches.param_shapes(BERT(), config))


def logits(config: EncoderConfig, params: dict, batch: dict) -> dict:
    return jax.jit(functools.partial(BERT().apply, BERT().model(config)))(params, batch)


def test_factorized_embeddings_change_only_the_shapes_that_hold_e():
    plain, narrow = shapes(batches.ENCODER), shapes(NARROW)
    assert {path: shape for path, shape in narrow.items() if plain.get(path) != shape} == {
        "encoder/embeddings/word": (128, 8),
        "encoder/embeddings/position": (16, 8),
        "encoder/embeddings/segment": (2, 8),
        "encoder/embeddings/norm/scale": (8,),
        "encoder/embeddings/norm/bias": (8,),
        "encoder/projection/kernel": (8, 16),
        "encoder/projection/bias": (16,),
        "heads/mlm/transform/kernel": (16, 8),
        "heads/mlm/transform/bias": (8,),
        "heads/mlm/norm/scale": (8,),
        "heads/mlm/norm/bias": (8,),
    }
    assert plain.keys() < narrow.keys()
    assert shapes(dataclasses.replace(batches.ENCODER, embeddings=BertEmbeddings(16))) == plain


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


def test_the_vocabulary_of_factorized_embeddings_is_cut_and_padded():
    params = jax.tree.map(np.asarray, filled(NARROW))
    cut = vocabulary.cut(params, NARROW)
    assert cut["encoder"]["embeddings"]["word"].shape == (100, 8) and cut["heads"]["mlm"]["word_bias"].shape == (100,)
    batch = batches.make(2)
    jax.tree.map(
        np.testing.assert_array_equal,
        logits(NARROW, vocabulary.pad(cut, NARROW), batch),
        logits(NARROW, params, batch),
    )


def test_without_a_segment_table_segments_do_not_matter():
    config, batch = dataclasses.replace(batches.ENCODER, embeddings=BertEmbeddings(segments=0)), batches.make(2)
    params = filled(config)
    assert "segment" not in params["encoder"]["embeddings"]
    other = batch | {"segments_BT": 1 - batch["segments_BT"]}
    jax.tree.map(np.testing.assert_array_equal, logits(config, params, batch), logits(config, params, other))
    # It is what a table of zeros gives.
    zeros = {"segment": np.zeros((2, 16), np.float32)}
    with_table = params | {"encoder": params["encoder"] | {"embeddings": params["encoder"]["embeddings"] | zeros}}
    jax.tree.map(
        np.testing.assert_array_equal, logits(batches.ENCODER, with_table, batch), logits(config, params, batch)
    )


def test_an_offset_reads_the_position_table_from_that_row():
    config, batch = dataclasses.replace(batches.ENCODER, embeddings=BertEmbeddings(position_offset=2)), batches.make(2)
    params = filled(config)
    tables = params["encoder"]["embeddings"]
    assert tables["position"].shape == (18, 16)
    cut = params | {"encoder": params["encoder"] | {"embeddings": tables | {"position": tables["position"][2:]}}}
    jax.tree.map(np.testing.assert_array_equal, logits(config, params, batch), logits(batches.ENCODER, cut, batch))


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


def test_an_encoder_with_its_own_embeddings_starts_as_without_sharing():
    """The key of a parameter follows from its path, however the module was created."""
    key, tokens_BT = jax.random.key(0), jnp.zeros((1, 4), jnp.int32)
    own = jax.jit(Encoder(batches.ENCODER).init)(key, tokens_BT)["params"]["embeddings"]

    class Root(nn.Module):
        def setup(self):
            self.embeddings = BertEmbeddingLayer(batches.ENCODER)

        def __call__(self):
            return self.embeddings(tokens_BT, tokens_BT, tokens_BT, None)

    jax.tree.map(np.testing.assert_array_equal, own, jax.jit(Root().init)(key)["params"]["embeddings"])


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"embeddings": BertEmbeddings(position_offset=-2)},
            "model.embeddings.position_offset=-2 must not be",
        ),
    ],
)
def test_invalid_embeddings(fields, message):
    with pytest.raises(UserError, match=message):
        EncoderConfig(**fields)
