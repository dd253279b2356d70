"""The decisions of dropout on attention: their share, their independence, and what does not change them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bertjax.models import attention_dropout
from bertjax.models.attention_dropout import dropout_by_hash, inverse_of_kept_share

B, H, T = 4, 3, 64
# Nothing below is rejected by chance in more than one of ten thousand tries, and the draws are always the same.
LEVEL = 1e-4


def row_keys(step: int, rows: int = B) -> jax.Array:
    key = jax.random.fold_in(jax.random.key(0), step)
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(rows))


def dropped(step: int, rate: float, rows: int = B, tokens: int = T) -> np.ndarray:
    """Return the decisions [B, H, T, T] of a step."""
    return np.asarray(dropout_by_hash(jnp.ones((rows, H, tokens, tokens)), rate, row_keys(step, rows)) == 0.0)


@pytest.fixture(params=["one group of keys", "four groups of keys"])
def groups(request, monkeypatch):
    if request.param.startswith("four"):
        monkeypatch.setattr(attention_dropout, "LONGEST_GROUP", T // 2)
        monkeypatch.setattr(attention_dropout, "GROUP", T // 4)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.25])
def test_the_share_of_zeros_is_that_of_the_rate_everywhere(rate):
    """Of each row, head, query, key and byte of a word, against the binomial distribution."""
    zeros, share = dropped(0, rate), 1 - 1 / inverse_of_kept_share(rate)
    parts = [zeros.sum(axis=tuple({0, 1, 2, 3} - {axis})) for axis in range(4)]
    parts.append(zeros.reshape(B, H, T, 4, T // 4).sum(axis=(0, 1, 2, 4)))
    for found in parts:
        expected = zeros.size / len(found) * share
        statistic = np.sum((found - expected) ** 2 / (expected * (1 - share)))
        assert stats.chi2.sf(statistic, len(found)) > LEVEL


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_decisions_are_independent(rate):
    """Of heads, rows, steps, queries, keys, and of the bytes of a word: chi-squared of every 2 x 2 table."""
    zeros, next_step = dropped(0, rate), dropped(1, rate)
    pairs = {
        "heads": (zeros[:, :-1], zeros[:, 1:]),
        "rows": (zeros[:-1], zeros[1:]),
        "steps": (zeros, next_step),
        "queries": (zeros[:, :, :-1], zeros[:, :, 1:]),
        "every other query": (zeros[:, :, :-2], zeros[:, :, 2:]),
        "keys": (zeros[..., :-1], zeros[..., 1:]),
        "query and key exchanged": (zeros, zeros.swapaxes(2, 3)),
        **{f"bytes {byte} apart": (zeros[..., : -byte * T // 4], zeros[..., byte * T // 4 :]) for byte in (1, 2, 3)},
    }
    for name, (one, other) in pairs.items():
        if name == "query and key exchanged":  # each pair once
            above = np.triu_indices(T, 1)
            one, other = one[..., *above], other[..., *above]
        table = np.histogram2d(one.ravel(), other.ravel(), bins=2)[0]
        assert stats.chi2_contingency(table).pvalue > LEVEL, name


@pytest.mark.usefixtures("groups")
def test_no_two_rows_heads_or_steps_share_words():
    """Rows of bits that are equal or each other's complement would be found here, whatever their order."""
    patterns = np.concatenate([dropped(step, 0.5).reshape(-1, T * T) for step in range(4)]).astype(np.float32) * 2 - 1
    correlations = np.abs(patterns @ patterns.T / (T * T) - np.eye(len(patterns)))
    assert correlations.max() < 5 / T  # five standard deviations of a sum of T * T signs


def test_a_row_draws_the_same_in_any_part_of_the_batch():
    ones = jnp.ones((B, H, T, T))
    whole = dropout_by_hash(ones, 0.1, row_keys(0))
    parts = [dropout_by_hash(ones[:1], 0.1, row_keys(0)[row : row + 1]) for row in range(B)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


@pytest.mark.parametrize("tokens", [64, 50])
def test_a_query_draws_the_same_alone(tokens):
    """Rows whose length is no multiple of four, too."""
    columns_BQ = jnp.asarray([[3, 49, 0], [1, 1, 7]])
    ones = jnp.ones((2, H, tokens, tokens))
    whole = dropout_by_hash(ones, 0.1, row_keys(0, 2))
    alone = dropout_by_hash(ones[:, :, :3], 0.1, row_keys(0, 2), columns_BQ)
    np.testing.assert_array_equal(alone, jnp.take_along_axis(whole, columns_BQ[:, None, :, None], axis=2))


def test_decisions_are_frozen():
    """A resumed run must draw what the run before it would have drawn, with any version of bertjax."""
    decisions = np.packbits(dropped(0, 0.5, rows=1, tokens=16)[0, 0, :4])
    np.testing.assert_array_equal(decisions, [108, 89, 34, 190, 24, 68, 132, 108])


def test_the_mean_is_kept():
    kept = dropout_by_hash(jnp.ones((B, H, T, T)), 0.1, row_keys(0))
    assert set(np.unique(kept)) == {0.0, np.float32(256 / 230)}
    assert float(kept.mean()) == pytest.approx(1.0, abs=0.005)


def test_without_a_key_nothing_is_dropped():
    ones = jnp.ones((1, H, 4, 4))
    assert dropout_by_hash(ones, 0.1, None) is ones and dropout_by_hash(ones, 0.0, row_keys(0, 1)) is ones
