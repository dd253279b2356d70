"""Contextuality of constructed vectors, and against the definitions written as loops."""

import numpy as np
import pytest

from bertjax.analysis.probing.contextuality import Sample, explained_variance, mean_cosine, measure, sample
from bertjax.data.examples import Vocabulary, add_special_tokens

# 0 to 4 are special; 20 to 24 continue a word.
VOCABULARY = Vocabulary(25, 0, 1, 2, 3, special_ids=(0, 1, 2, 3, 4), continuation_ids=(20, 21, 22, 23, 24))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def constructed(states: np.ndarray, types, sentences, is_random) -> Sample:
    return Sample(np.arange(len(states)), np.array(types), np.array(sentences), np.array(is_random, bool))


def test_measures_are_their_definitions():
    random = np.random.default_rng(0)
    states = random.normal(size=(30, 6)) + 0.5
    types, sentences = np.arange(30) % 4 - 1, np.arange(30) % 5 - 1
    words = constructed(states, types, sentences, np.arange(30) % 2)
    measured = measure(states, words)

    def pairs(part):
        return np.mean([cosine(a, b) for i, a in enumerate(part) for j, b in enumerate(part) if i != j])

    def principal(part):
        values = np.linalg.svd(part - part.mean(axis=0), compute_uv=False) ** 2
        return values[0] / values.sum()

    of_type = [states[types == number] for number in range(3)]
    of_sentence = [states[sentences == number] for number in range(4)]
    drawn = states[1::2]
    assert measured.self_similarity == pytest.approx(np.mean([pairs(part) for part in of_type]))
    assert measured.explained_variance == pytest.approx(np.mean([principal(part) for part in of_type]))
    assert measured.anisotropy == pytest.approx(pairs(drawn))
    assert measured.random_variance == pytest.approx(principal(drawn))
    intra = [np.mean([cosine(word, part.mean(axis=0)) for word in part]) for part in of_sentence]
    assert measured.intra_sentence_similarity == pytest.approx(np.mean(intra))
    assert measured.adjusted["self_similarity"] == pytest.approx(measured.self_similarity - measured.anisotropy)


def test_static_vectors_have_self_similarity_one_and_no_variance():
    static = np.random.default_rng(0).normal(size=(4, 50))[np.arange(40) % 4]
    measured = measure(static, constructed(static, np.arange(40) % 4, np.arange(40) // 4, np.arange(40) < 4))
    assert measured.self_similarity == pytest.approx(1)
    assert np.isnan(measured.explained_variance)
    assert measured.adjusted["self_similarity"] == pytest.approx(1 - measured.anisotropy)


def test_a_cone_is_what_the_adjustment_removes():
    """Independent directions around a common mean: similar, but no more so for a word than for any two words."""
    states = np.random.default_rng(0).normal(size=(400, 300)) + 3
    measured = measure(states, constructed(states, np.arange(400) % 20, np.full(400, -1), np.arange(400) < 200))
    assert measured.self_similarity > 0.85
    assert abs(measured.adjusted["self_similarity"]) < 0.01


def test_one_direction_explains_all():
    line = np.outer(np.arange(1, 9), [3, 4]) + [1, 0]
    assert explained_variance(line) == pytest.approx(1)
    assert mean_cosine(line[:1]) != mean_cosine(line[:1])  # nan


def test_sample_takes_whole_words_from_different_sentences():
    """Token 5 is alone, 6 always continued by 20; 7 is in four sentences only; 8 twice in each sentence."""
    texts = [[5, 6, 20, 8, 8, *([7] if number < 4 else [])] for number in range(9)]
    ragged = add_special_tokens(texts, None, VOCABULARY, {})
    words = sample(ragged, VOCABULARY, seed=0)
    tokens, examples = ragged.tokens[words.tokens], ragged.token_examples[words.tokens]
    assert set(tokens[words.types >= 0]) == {5, 8}
    for number in range(2):
        assert sorted(examples[words.types == number]) == list(range(9))
    assert not {1, 2, 20} & set(tokens)  # [CLS], [SEP] and continuations
    assert sorted(examples[words.is_random]) == list(range(9))
    for number in range(9):  # all words of a sentence
        [example] = set(examples[words.sentences == number])
        assert np.sum(words.sentences == number) == len(texts[example]) - 1
