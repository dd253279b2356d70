"""Grade lesson 2: `pytest lessons/test_2.py`."""

import inspect
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from lesson import HERE  # noqa: F401 - it finds bertjax

from bertjax import nano

T, D, HEADS = 6, 16, 4


def vectors(seed, *shape):
    return jnp.array(np.random.default_rng(seed).normal(size=shape), jnp.float32)


QUERIES, KEYS, VALUES = vectors(0, T, D), vectors(1, T, D), vectors(2, T, D)
ALL = jnp.ones((T, T), bool)
TWO_EXAMPLES = jnp.array([1, 1, 2, 2, 2, 2])[:, None] == jnp.array([1, 1, 2, 2, 2, 2])


def expected(scale, axis=-1):
    return jax.nn.softmax(QUERIES @ KEYS.T * scale, axis=axis)


def test_the_weights_of_a_token_sum_to_one(one_head):
    context_TD, weights_TT = one_head(QUERIES, KEYS, VALUES, ALL)
    assert weights_TT.shape == (T, T) and context_TD.shape == (T, D), "return ([T, D], [T, T])"
    columns = jnp.allclose(weights_TT.sum(axis=0), 1, atol=1e-4)
    rows = jnp.allclose(weights_TT.sum(axis=1), 1, atol=1e-4)
    assert rows or not columns, "columns sum to 1: take the softmax over the keys, the last axis"
    assert rows, "the weights of a token do not sum to 1"
    assert jnp.allclose(context_TD, weights_TT @ VALUES, atol=1e-4), "the result is weights @ values"


def test_scores_are_scaled(one_head):
    _, weights_TT = one_head(QUERIES, KEYS, VALUES, ALL)
    assert not jnp.allclose(weights_TT, expected(1.0), atol=1e-4), "the scores are not divided by the root of D"
    assert not jnp.allclose(weights_TT, expected(1 / D), atol=1e-4), "divided by D; it is the root of D"
    assert jnp.allclose(weights_TT, expected(D**-0.5), atol=1e-4), "the weights are not softmax(queries keys / sqrt(D))"


def test_hidden_tokens_have_no_weight(one_head):
    _, weights_TT = one_head(QUERIES, KEYS, VALUES, TWO_EXAMPLES)
    assert jnp.allclose(weights_TT[~TWO_EXAMPLES], 0, atol=1e-6), (
        "a token looks into another example. A score of 0 is not a weight of 0: use a very negative score"
    )
    assert jnp.allclose(weights_TT.sum(axis=1), 1, atol=1e-4), (
        "weights no longer sum to 1: hide tokens before the softmax, not after it"
    )


WIDTH = 32
PARAMS = {
    name: {"kernel": vectors(seed, WIDTH, WIDTH) / 4, "bias": vectors(seed + 9, WIDTH)}
    for seed, name in enumerate(("query", "key", "value", "output"), 3)
}
HIDDEN = vectors(20, T, WIDTH)


def attention_with_a_right_head(self_attention):
    """Return exercise 2 with a right `one_head` in place of exercise 1, which has its own grade."""

    def attend(*arguments):
        with mock.patch.dict(inspect.unwrap(self_attention).__globals__, one_head=right_head):
            return self_attention(*arguments)

    return attend


def right_head(queries_TD, keys_TD, values_TD, sees_TT):
    scores_TT = jnp.where(sees_TT, queries_TD @ keys_TD.T * queries_TD.shape[-1] ** -0.5, -1e30)
    weights_TT = jax.nn.softmax(scores_TT, axis=-1)
    return weights_TT @ values_TD, weights_TT


def test_heads_are_slices_of_the_channels(self_attention):
    self_attention = attention_with_a_right_head(self_attention)
    mine_TD = self_attention(PARAMS, HIDDEN, ALL, HEADS)
    assert mine_TD.shape == (T, WIDTH), f"the result has shape {mine_TD.shape}; return [T, D], heads side by side"
    wrong = [dense(name).reshape(HEADS, T, -1) for name in ("query", "key", "value")]
    assert not jnp.allclose(mine_TD, joined(*wrong), atol=1e-3), (
        "reshape(heads, T, D / heads) mixes tokens: split the last axis, then move the heads to the front"
    )
    split = [jnp.stack(jnp.split(dense(name), HEADS, axis=-1)) for name in ("query", "key", "value")]
    assert not jnp.allclose(mine_TD, joined(*split, WIDTH**-0.5), atol=1e-3), (
        "the scores are divided by the root of the width of the model; a dot product of a head has D / heads terms"
    )
    context_TD = (joined(*split) - PARAMS["output"]["bias"]) @ jnp.linalg.inv(PARAMS["output"]["kernel"])
    assert not jnp.allclose(mine_TD, context_TD, atol=1e-2), "the output matrix is missing"


def test_it_equals_nano(self_attention):
    self_attention = attention_with_a_right_head(self_attention)
    for sees_TT in (ALL, TWO_EXAMPLES):
        mine_TD = self_attention(PARAMS, HIDDEN, sees_TT, HEADS)
        theirs_TD = nano.attention(PARAMS, HIDDEN[None], sees_TT[None], HEADS)[0]
        difference = float(jnp.abs(mine_TD - theirs_TD).max())
        assert difference < 1e-4, f"the largest difference to nano.attention is {difference:.1e}"


def dense(name):
    return HIDDEN @ PARAMS[name]["kernel"] + PARAMS[name]["bias"]


def joined(queries_HTD, keys_HTD, values_HTD, scale=(WIDTH // HEADS) ** -0.5):
    """Return the output of attention for vectors that are split already."""
    context_HTD = jax.nn.softmax(queries_HTD @ keys_HTD.mT * scale, axis=-1) @ values_HTD
    context_TD = jnp.concatenate(list(context_HTD), axis=-1)
    return context_TD @ PARAMS["output"]["kernel"] + PARAMS["output"]["bias"]
