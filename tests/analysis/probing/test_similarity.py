"""CKA against its direct formulas."""

import numpy as np
import pytest

from bertjax.analysis.probing.similarity import WORDS, centered_grams, cka, grams_of


def states_of(count: int, layers: int, width: int, seed: int = 0) -> np.ndarray:
    """Vectors with a mean, whose layers share a part."""
    random = np.random.default_rng(seed)
    shared = random.normal(size=(count, 1, width))
    return 3 + shared + random.normal(size=(count, layers, width)) * np.arange(1, layers + 1)[None, :, None] / 2


def unbiased_hsic(first: np.ndarray, second: np.ndarray) -> float:
    """Song et al., 2012, equation 5, on dot products."""
    count = len(first)
    k, m = first @ first.T, second @ second.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    ones = np.ones(count)
    value = np.trace(k @ m) + (ones @ k @ ones) * (ones @ m @ ones) / ((count - 1) * (count - 2))
    return (value - 2 / (count - 2) * ones @ k @ m @ ones) / (count * (count - 3))


def test_one_minibatch_is_the_unbiased_formula():
    first, second = states_of(40, 3, 6), states_of(40, 2, 9)
    direct = [
        [unbiased_hsic(a, b) / np.sqrt(unbiased_hsic(a, a) * unbiased_hsic(b, b)) for b in np.moveaxis(second, 1, 0)]
        for a in np.moveaxis(first, 1, 0)
    ]
    np.testing.assert_allclose(cka(grams_of(first), grams_of(second)), direct, atol=1e-5)


def test_minibatches_average_the_parts_of_the_quotient():
    states = states_of(WORDS + 50, 2, 5)
    parts = states[:WORDS], states[WORDS:]
    a, b, ab = (np.mean([unbiased_hsic(part[:, i], part[:, j]) for part in parts]) for i, j in ((0, 0), (1, 1), (0, 1)))
    similarity = cka(grams_of(states), grams_of(states))
    np.testing.assert_allclose(similarity, [[1, ab / np.sqrt(a * b)]] + [[ab / np.sqrt(a * b), 1]], atol=1e-5)


def test_many_words_agree_with_linear_cka_in_feature_space():
    """Kornblith et al., 2019, equation 4: for many more words than dimensions both estimates are the same."""
    states = states_of(40 * WORDS, 2, 4)
    x, y = np.moveaxis(states - states.mean(axis=0), 1, 0)
    direct = np.sum((x.T @ y) ** 2) / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
    assert cka(grams_of(states), grams_of(states))[0, 1] == pytest.approx(direct, abs=0.01)


def test_a_minibatch_needs_four_words():
    assert len(grams_of(states_of(WORDS + 3, 1, 4))) == 1
    with pytest.raises(ValueError, match="4 words or more, not 3"):
        centered_grams(states_of(3, 1, 4))
