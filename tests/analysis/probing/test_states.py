"""States of words and texts, however rows are packed."""

import jax
import numpy as np
import pytest

from bertjax.analysis.probing.findings import computed, hidden, lens
from bertjax.analysis.probing.similarity import WORDS, cka, grams_of, word_starts
from tests.analysis.conftest import packed_rows


@pytest.fixture(scope="module")
def encoded(pretrained, texts):
    return texts.encoded(pretrained)


def states_of(subject, encoded, batches, unit_of):
    with computed(subject.encoder, subject.params, batches, encoded.ragged, unit_of) as states:
        return np.array(states)


def test_a_unit_is_the_mean_of_its_tokens(pretrained, encoded):
    ragged = encoded.ragged
    batches = list(encoded.batches(pretrained.encoder))
    tokens = states_of(pretrained, encoded, batches, np.arange(len(ragged.tokens)))
    assert tokens.shape == (len(ragged.tokens), 4, 32)
    texts = states_of(pretrained, encoded, batches, ragged.token_examples)
    for example in range(len(encoded)):
        own = tokens[ragged.offsets[example] : ragged.offsets[example + 1]]
        np.testing.assert_allclose(texts[example], own.mean(axis=0), atol=1e-5)
    starts = word_starts(ragged, encoded.vocabulary)
    words = states_of(pretrained, encoded, batches, np.where(starts, np.cumsum(starts) - 1, -1))
    np.testing.assert_array_equal(words, tokens[starts])


@pytest.fixture(scope="module")
def batch(pretrained, texts):
    encoded = texts.encoded(pretrained)
    return encoded.batch(packed_rows(encoded.ragged.lengths, 64)[:6], 64, with_objective=True)


@pytest.fixture(scope="module")
def sums(pretrained, batch):
    computed = jax.jit(lambda params, batch: lens(pretrained.objective, pretrained.encoder, params, batch))
    return jax.device_get(computed(pretrained.params, batch))


def test_each_layer_is_read_by_the_head(pretrained, batch, sums):
    params = jax.device_get(pretrained.params)
    head, word_VE = params["heads"]["mlm"], params["encoder"]["embeddings"]["word"]
    hidden_LBTD = np.asarray(hidden(pretrained.encoder, pretrained.params, batch))
    size = pretrained.encoder.vocab_size
    log_rank, reciprocal = np.zeros((2, len(hidden_LBTD)))
    for layer, states_BTD in enumerate(hidden_LBTD):
        for row, k in zip(*np.nonzero(batch["mlm_weights_BK"])):
            state = states_BTD[row, batch["mlm_positions_BK"][row, k]]
            transformed = state @ head["transform"]["kernel"] + head["transform"]["bias"]
            transformed = np.asarray(jax.nn.gelu(transformed, approximate=False))
            normal = (transformed - transformed.mean()) / np.sqrt(transformed.var() + pretrained.encoder.norm_epsilon)
            logits = (normal * head["norm"]["scale"] + head["norm"]["bias"]) @ word_VE.T + head["word_bias"]
            rank = 1 + np.sum(logits[:size] > logits[batch["mlm_labels_BK"][row, k]])
            log_rank[layer] += np.log(rank)
            reciprocal[layer] += 1 / rank
    np.testing.assert_allclose(sums["log_rank"][0], log_rank, rtol=1e-4)
    np.testing.assert_allclose(sums["reciprocal_rank"][0], reciprocal, rtol=1e-4)


def similarity_states_of(count: int, layers: int, width: int, seed: int = 0) -> np.ndarray:
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
    first, second = similarity_states_of(40, 3, 6), similarity_states_of(40, 2, 9)
    direct = [
        [unbiased_hsic(a, b) / np.sqrt(unbiased_hsic(a, a) * unbiased_hsic(b, b)) for b in np.moveaxis(second, 1, 0)]
        for a in np.moveaxis(first, 1, 0)
    ]
    np.testing.assert_allclose(cka(grams_of(first), grams_of(second)), direct, atol=1e-5)


def test_many_words_agree_with_linear_cka_in_feature_space():
    """Kornblith et al., 2019, equation 4: for many more words than dimensions both estimates are the same."""
    states = similarity_states_of(40 * WORDS, 2, 4)
    x, y = np.moveaxis(states - states.mean(axis=0), 1, 0)
    direct = np.sum((x.T @ y) ** 2) / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
    assert cka(grams_of(states), grams_of(states))[0, 1] == pytest.approx(direct, abs=0.01)
