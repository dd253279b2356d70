"""Padding of the vocabulary, and the parameter counts of the published models."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import vocabulary
from bertjax.models.encoder import Encoder
from bertjax.models.presets import PRESETS
from bertjax.objectives.pretraining.sentence_pairs import BERT
from tests import batches


@pytest.mark.parametrize("preset, parameters", [("base", 109_482_240), ("large", 335_141_888)])
def test_the_published_models_have_the_published_number_of_parameters(preset, parameters):
    config = dataclasses.replace(PRESETS[preset], vocab_size=30_522)
    tokens_BT = jnp.zeros((1, 4), jnp.int32)
    params = jax.eval_shape(Encoder(config).init, jax.random.key(0), tokens_BT)["params"]
    assert vocabulary.count_parameters(params, config) == parameters
    padding = (config.padded_vocab_size - 30_522) * config.width
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == parameters + padding


@pytest.fixture(scope="module")
def params() -> dict:
    return jax.jit(lambda key: BERT().init(BERT().model(batches.ENCODER), key, batches.make(2)))(jax.random.key(0))


def test_cut_leaves_the_tokens_and_pad_is_its_inverse(params):
    cut = vocabulary.cut(params, batches.ENCODER)
    assert cut["encoder"]["embeddings"]["word"].shape == (100, 16)
    assert cut["heads"]["mlm"]["word_bias"].shape == (100,)
    padded = vocabulary.pad(jax.tree.map(np.asarray, cut), batches.ENCODER)
    assert jax.tree.map(jnp.shape, padded) == jax.tree.map(jnp.shape, params)
    jax.tree.map(np.testing.assert_array_equal, vocabulary.cut(padded, batches.ENCODER), cut)
    assert np.abs(padded["encoder"]["embeddings"]["word"][100:]).max() == 0


def test_padding_changes_no_logits(params):
    apply, batch = jax.jit(functools.partial(BERT().apply, BERT().model(batches.ENCODER))), batches.make(2)
    zeroed = vocabulary.pad(jax.tree.map(np.asarray, vocabulary.cut(params, batches.ENCODER)), batches.ENCODER)
    jax.tree.map(
        np.testing.assert_array_equal,
        apply(zeroed, batch),
        apply(params, batch),
    )
