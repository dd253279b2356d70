"""Heads: logits of padded tokens, dtypes, and the number of classes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.config import Execution
from bertjax.models.heads import MaskedLMHead, PairHead
from tests import batches

CONFIG = batches.ENCODER
LOWEST = np.finfo(np.float32).min


@pytest.fixture(scope="module")
def hidden_BKD() -> jax.Array:
    return jax.random.normal(jax.random.key(0), (2, 3, CONFIG.width))


@pytest.fixture(scope="module")
def word_VD() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (CONFIG.padded_vocab_size, CONFIG.width))


@pytest.mark.slow
def test_padded_tokens_have_the_lowest_logits_and_no_gradient(hidden_BKD, word_VD):
    head = MaskedLMHead(CONFIG)
    params = head.init(jax.random.key(2), hidden_BKD, word_VD)["params"]

    def loss(params, word_VD):
        logits_BKV = head.apply({"params": params}, hidden_BKD, word_VD)
        return jnp.sum(jax.nn.logsumexp(logits_BKV, axis=-1)), logits_BKV

    (of_params, of_words), logits_BKV = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, word_VD)
    np.testing.assert_array_equal(logits_BKV[..., 100:], np.full((2, 3, 28), LOWEST))
    assert np.abs(logits_BKV[..., :100]).max() < 1e3
    for gradient in (of_words, of_params["word_bias"]):
        assert np.abs(gradient[100:]).max() == 0 and np.abs(gradient[:100]).min() > 0


def test_logits_are_float32_whatever_the_compute_dtype(hidden_BKD, word_VD):
    config = dataclasses.replace(CONFIG, execution=Execution(dtype="bfloat16"))
    for head, inputs in ((MaskedLMHead(config), (hidden_BKD, word_VD)), (PairHead(config), (hidden_BKD,))):
        logits, variables = head.init_with_output(jax.random.key(0), *inputs)
        assert logits.dtype == jnp.float32
        assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}


def test_the_pair_head_has_the_configured_number_of_classes(hidden_BKD):
    assert PairHead(CONFIG, classes=5).init_with_output(jax.random.key(0), hidden_BKD)[0].shape == (2, 3, 5)
