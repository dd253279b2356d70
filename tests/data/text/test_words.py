"""Words of token sequences: bounds, stretches, and hashes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.text.words import Words
from tests.ragged import SEP, VOCABULARY

CONTINUES = 400


def words_of(tokens: list[int], boundary: list[int] = (0,)) -> Words:
    tokens, starts = np.array(tokens, np.int32), np.zeros(len(tokens), bool)
    starts[list(boundary)] = True
    return Words.of(tokens, starts, VOCABULARY)


def test_words_and_stretches_by_hand():
    words = words_of([10, CONTINUES, 11, SEP, CONTINUES, CONTINUES, 12, 13, CONTINUES, SEP], [0, 8])
    np.testing.assert_array_equal(words.starts, [0, 2, 4, 6, 7, 8])
    np.testing.assert_array_equal(words.lengths, [2, 1, 2, 1, 1, 1])
    np.testing.assert_array_equal(words.stretch_starts, [0, 2, 5])
    np.testing.assert_array_equal(words.stretch_lengths, [2, 3, 1])
    np.testing.assert_array_equal(words.stretches, [0, 0, 1, 1, 1, 2])
    np.testing.assert_array_equal(words.room, [2, 1, 3, 2, 1, 1])


def test_a_text_without_words():
    words = words_of([SEP, SEP])
    assert not len(words.starts) and not len(words.stretch_starts) and not len(words.room)
    assert [len(hashes) for hashes in words.hashes(np.array([SEP, SEP]), VOCABULARY.size, 3)] == [0, 0, 0]


@given(st.lists(st.sampled_from([10, 11, CONTINUES, CONTINUES + 1, SEP]), min_size=1, max_size=60), st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_runs_have_equal_hashes_exactly_if_their_words_are_equal(tokens, longest):
    words, text = words_of(tokens), np.array(tokens)
    for n, hashes in enumerate(words.hashes(text, VOCABULARY.size, longest), start=1):
        fits = np.flatnonzero(words.room >= n)
        spans = [(words.starts[i], words.starts[i + n - 1] + words.lengths[i + n - 1]) for i in fits]
        spelled = [tuple(text[start:stop]) for start, stop in spans]
        assert len(set(hashes[fits].tolist())) == len(set(spelled)) == len(set(zip(spelled, hashes[fits].tolist())))
