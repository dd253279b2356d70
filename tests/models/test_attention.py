"""Attention: literal masks, the softmax over visible tokens, and dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.attention import attend
from bertjax.models.dropout import seeds_of
from bertjax.models.visibility import Visibility
from tests.models import reference


def mask(*rows: str) -> np.ndarray:
    """Literal masks: 1 where the query of the row sees the token of the column."""
    return np.array([[character == "1" for character in row] for row in rows])[None]


EXAMPLES_BT = jnp.array([[1, 1, 1, 2, 2, 0]])
RANK_BT = jnp.array([[0, 2, 1, 1, 0, 0]])


@pytest.mark.parametrize(
    "visibility, expected",
    [
        (Visibility(EXAMPLES_BT), mask("111000", "111000", "111000", "000110", "000110", "000001")),
        (Visibility(EXAMPLES_BT, window=1), mask("110000", "111000", "011000", "000110", "000110", "000001")),
        (Visibility(EXAMPLES_BT, window=0), mask("100000", "010000", "001000", "000100", "000010", "000001")),
        (Visibility(EXAMPLES_BT, None, RANK_BT), mask("100000", "111000", "101000", "000110", "000010", "000001")),
        (Visibility(EXAMPLES_BT, 1, RANK_BT), mask("100000", "111000", "001000", "000110", "000010", "000001")),
    ],
    ids=["examples", "window", "window of itself", "rank", "rank and window"],
)
def test_masks(visibility, expected):
    np.testing.assert_array_equal(visibility.mask_BQT(), expected)
    read_BK = jnp.array([[4, 0, 4, 5]])
    np.testing.assert_array_equal(visibility.mask_BQT(read_BK), expected[:, [4, 0, 4, 5]])


def test_attention_is_a_softmax_over_visible_tokens():
    draw = np.random.default_rng(0)
    query, key, value = draw.normal(size=(3, 1, 6, 2, 4)).astype(np.float32)
    visible = Visibility(EXAMPLES_BT, None, RANK_BT).mask_BQT()
    values, probabilities = attend(query, key, value, visible, 0.0, None)
    np.testing.assert_array_equal(np.asarray(probabilities) > 0, np.broadcast_to(visible[:, None], (1, 2, 6, 6)))
    for head in range(2):
        for token in range(6):
            seen = np.flatnonzero(visible[0, token])
            weights = reference.softmax(query[0, token, head] @ key[0, seen, head].T / 2.0)
            np.testing.assert_allclose(probabilities[0, head, token, seen], weights, rtol=1e-5)
            np.testing.assert_allclose(values[0, token, head], weights @ value[0, seen, head], rtol=1e-4, atol=1e-6)


def test_dropout_acts_on_the_probabilities_but_not_on_those_returned():
    draw = np.random.default_rng(0)
    query, key, value = draw.normal(size=(3, 1, 6, 2, 4)).astype(np.float32)
    everything = jnp.ones((1, 6, 6), bool)
    plain, probabilities = attend(query, key, value, everything, 0.5, None)
    dropped, unchanged = attend(query, key, value, everything, 0.5, seeds_of(jax.random.key(0), 1, 2))
    np.testing.assert_array_equal(probabilities, unchanged)
    np.testing.assert_allclose(unchanged.sum(axis=-1), 1.0, rtol=1e-6)
    assert np.abs(plain - dropped).max() > 0.1
