"""Layers, heads, dropout and drawing of classes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bertjax.models import dropout_words
from bertjax.models.dropout import attention_dropout, dropout, seeds_of
from bertjax.models.dropout_words import inverse_of_kept_share
from bertjax.models.heads import MaskedLMHead
from bertjax.objectives.pretraining.electra import sample
from tests import batches

B, H, T, D = 4, 3, 64, 24
# Nothing below is rejected by chance in more than one of ten thousand tries, and the draws are always the same.
LEVEL = 1e-4


def row_keys(step: int, rows: int = B) -> jax.Array:
    key = jax.random.fold_in(jax.random.key(0), step)
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(rows))


def seeds(step: int, rows: int = B) -> jax.Array:
    return seeds_of(row_keys(step, rows), rows, H)


def dropped(step: int, rate: float, rows: int = B, tokens: int = T) -> np.ndarray:
    """Return the decisions [B, H, T, T] of a step."""
    return np.asarray(attention_dropout(jnp.ones((rows, H, tokens, tokens)), rate, seeds(step, rows)) == 0.0)


def dropped_states(step: int, rate: float, rows: int = B, shape: tuple[int, ...] = (T, D)) -> np.ndarray:
    """Return the decisions about hidden states [B, ...] of a step."""
    return np.asarray(dropout(jnp.ones((rows, *shape)), rate, row_keys(step, rows)) == 0.0)


@pytest.fixture(params=["one group of keys", "four groups of keys"])
def groups(request, monkeypatch):
    if request.param.startswith("four"):
        monkeypatch.setattr(dropout_words, "LONGEST_GROUP", T // 2)
        monkeypatch.setattr(dropout_words, "GROUP", T // 4)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.25])
def test_the_share_of_zeros_is_that_of_the_rate_everywhere(rate):
    """Of each row, head, query, key and byte of a word, against the binomial distribution."""
    zeros = dropped(0, rate)
    parts = [zeros.sum(axis=tuple({0, 1, 2, 3} - {axis})) for axis in range(4)]
    parts.append(zeros.reshape(B, H, T, 4, T // 4).sum(axis=(0, 1, 2, 4)))
    have_share(parts, zeros.size, rate)


def have_share(parts: list[np.ndarray], size: int, rate: float):
    share = round(rate * 256) / 256  # a byte decides
    assert inverse_of_kept_share(rate) * (1 - share) == pytest.approx(1, abs=1e-12)
    for found in parts:
        expected = size / len(found) * share
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
    above = np.triu_indices(T, 1)  # each pair once
    pairs["query and key exchanged"] = tuple(zeros[..., *above] for zeros in pairs["query and key exchanged"])
    are_independent(pairs)


def are_independent(pairs: dict[str, tuple[np.ndarray, np.ndarray]]):
    for name, (one, other) in pairs.items():
        table = np.histogram2d(one.ravel(), other.ravel(), bins=2)[0]
        assert stats.chi2_contingency(table).pvalue > LEVEL, name


@pytest.mark.usefixtures("groups")
def test_no_two_rows_heads_or_steps_share_words():
    """Rows of bits that are equal or each other's complement would be found here, whatever their order."""
    for decisions, size in ((dropped, T * T), (dropped_states, T * D)):
        patterns = np.concatenate([decisions(step, 0.5).reshape(-1, size) for step in range(4)]).astype(np.float32)
        signs = patterns * 2 - 1
        correlations = np.abs(signs @ signs.T / size - np.eye(len(signs)))
        assert correlations.max() < 5 / math.sqrt(size)  # five standard deviations of a sum of so many signs


def test_decisions_are_frozen():
    """A resumed run must draw what the run before it would have drawn, with any version of bertjax."""
    decisions = np.packbits(dropped(0, 0.5, rows=1, tokens=16)[0, 0, :4])
    np.testing.assert_array_equal(decisions, [108, 89, 34, 190, 24, 68, 132, 108])
    decisions = np.packbits(dropped_states(0, 0.5, rows=1, shape=(8, 8)))
    np.testing.assert_array_equal(decisions, [61, 115, 222, 24, 54, 181, 163, 203])


DRAWS = 20_000


@pytest.mark.parametrize("classes", [128, 384])
def test_classes_are_drawn_with_the_probabilities_of_their_softmax(classes):
    draw = np.random.default_rng(0)
    logits = 3.0 * draw.normal(size=classes).astype(np.float32)
    logits[draw.permutation(classes)[: classes // 2]] = np.finfo(np.float32).min
    probabilities = np.exp(np.float64(logits) - logits.max())
    probabilities /= probabilities.sum()
    drawn = jax.jit(sample)(jnp.broadcast_to(logits, (DRAWS, classes)), jax.random.key(1))
    counts = np.bincount(drawn, minlength=classes)
    assert counts[probabilities == 0].sum() == 0
    expected = DRAWS * probabilities
    likely = expected >= 5
    # Pearson's statistic: its mean is its degrees of freedom, its variance twice that.
    statistic = ((counts[likely] - expected[likely]) ** 2 / expected[likely]).sum()
    assert abs(statistic - likely.sum()) < 4 * np.sqrt(2 * likely.sum())


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
