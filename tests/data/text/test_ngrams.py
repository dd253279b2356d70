"""n-grams of words: those of a plain implementation, for any division into blocks and in any script."""

import random
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.text import ngrams
from bertjax.data.text.words import Words
from tests.ragged import SEP, VOCABULARY

TEXTS = [
    "The quick brown fox, it jumped over: the lazy dog.",
    "",
    "one",
    "\uff21\uff22\uff23 abc ABC\u00df strasse STRASSE",
    "!?\u2014",
    "판결은 원심과 같다. 판결은 원심과 다르다.",
    "我们今天去学校 abc 东京タワー",
    "ภาษาไทย text",
]


GOLDEN = [171274413296868251, 17411443299618840829, 16391229124354465507]


def plain_words(text):
    """Words by a regular expression over normalized text."""
    normal = unicodedata.normalize("NFKC", text).casefold()
    alone = "\u0e00-\u0eff\u3005-\u3007\u3040-\u30ff\u4e00-\u9fff"
    kept = "".join(c if unicodedata.category(c)[0] in "LMN" else " " for c in normal)
    return re.findall(f"[{alone}]|[^\\s{alone}]+", kept)


def plain_ngrams(text, n):
    words = plain_words(text)
    return [tuple(words[i : i + n]) for i in range(max(1, len(words) - n + 1))] if words else []


@pytest.mark.parametrize("block, n", [(1 << 20, 5), (16, 1), (1, 3)])
def test_ngrams_are_equal_exactly_if_their_words_are(monkeypatch, block, n):
    expected = [plain_ngrams(text, n) for text in TEXTS]
    monkeypatch.setattr(ngrams, "BLOCK", max(block, max(map(len, TEXTS)) if block < 16 else block))
    words, words_D = ngrams.word_hashes(TEXTS)
    assert words_D.tolist() == [len(plain_words(text)) for text in TEXTS]
    hashes, grams_D = ngrams.ngram_hashes(words, words_D, n)
    assert grams_D.tolist() == list(map(len, expected))
    pairs = list(zip(sum(expected, []), hashes.tolist(), strict=True))
    assert len(set(pairs)) == len({gram for gram, _ in pairs}) == len({value for _, value in pairs})


def test_a_long_text_is_cut_between_words(monkeypatch):
    draw = random.Random(0)
    text = " ".join("".join(draw.choices("abcdefgh\u00e9", k=draw.randint(1, 9))) for _ in range(500))
    whole = ngrams.word_hashes([text, text])
    monkeypatch.setattr(ngrams, "BLOCK", 100)
    cut = ngrams.word_hashes([text, text])
    assert np.array_equal(whole[0], cut[0]) and whole[1].tolist() == cut[1].tolist() == [500, 500]
    # Signatures of documents are compared across processes and machines.
    words, counts = ngrams.word_hashes(["Near duplicates, found."])
    assert counts.tolist() == [3] and words.tolist() == GOLDEN


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


@given(st.lists(st.sampled_from([10, 11, CONTINUES, CONTINUES + 1, SEP]), min_size=1, max_size=60), st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_runs_have_equal_hashes_exactly_if_their_words_are_equal(tokens, longest):
    words, text = words_of(tokens), np.array(tokens)
    for n, hashes in enumerate(words.hashes(text, VOCABULARY.size, longest), start=1):
        fits = np.flatnonzero(words.room >= n)
        spans = [(words.starts[i], words.starts[i + n - 1] + words.lengths[i + n - 1]) for i in fits]
        spelled = [tuple(text[start:stop]) for start, stop in spans]
        assert len(set(hashes[fits].tolist())) == len(set(spelled)) == len(set(zip(spelled, hashes[fits].tolist())))
