"""MinHash: the minima of a plain implementation, and as many near-duplicates found as the theory says."""

import random

import numpy as np
import pytest

from bertjax.data.config import NearDuplicates
from bertjax.data.preparation import near_duplicates
from bertjax.data.text import ngrams

SETTINGS = NearDuplicates(drop=True)
PAIRS = 300
WORDS = 200


def texts_with_edits(share, is_contiguous):
    """Pairs of texts of which the second has a share of its words replaced, in one stretch or anywhere."""
    draw = random.Random(f"{share} {is_contiguous}")
    pairs = []
    for _ in range(PAIRS):
        words = [f"w{draw.randrange(50_000)}" for _ in range(WORDS)]
        number = round(share * WORDS)
        first = draw.randrange(WORDS - number + 1)
        places = range(first, first + number) if is_contiguous else draw.sample(range(WORDS), number)
        edited = list(words)
        for place in places:
            edited[place] = f"e{draw.randrange(50_000)}"
        pairs.append((" ".join(words), " ".join(edited)))
    return pairs


def jaccard(first, second):
    a, b = (
        set(ngrams.ngram_hashes(*ngrams.word_hashes([text]), SETTINGS.ngram)[0].tolist()) for text in (first, second)
    )
    return len(a & b) / len(a | b)


@pytest.mark.parametrize(
    "share, is_contiguous", [(0.01, False), (0.05, True), (0.1, False), (0.2, True), (0.3, False), (0.4, True)]
)
def test_recall_is_that_of_the_theory_and_precision_is_1(share, is_contiguous):
    """Edits of 5 to 40% of the words: 1-(1-s^8)^14 of the pairs are found, within 4 standard deviations."""
    pairs = texts_with_edits(share, is_contiguous)
    first, second = (near_duplicates.buckets(list(texts), SETTINGS) for texts in zip(*pairs))
    found = (first == second).any(axis=1)
    expected = np.array([1 - (1 - jaccard(*pair) ** SETTINGS.hashes) ** SETTINGS.buckets for pair in pairs])
    deviation = np.sqrt((expected * (1 - expected)).sum())
    assert abs(found.sum() - expected.sum()) <= 4 * deviation + 0.5
    unrelated = (first == np.roll(second, 1, axis=0)).any(axis=1)
    assert not unrelated.any()


@pytest.mark.parametrize("grams_at_once", [1 << 15, 20])
def test_a_bucket_is_the_minima_of_its_hashes(monkeypatch, grams_at_once):
    monkeypatch.setattr(near_duplicates, "GRAMS_AT_ONCE", grams_at_once)
    texts = ["a b c d e f g h", "", "x", "!", " ".join(map(str, range(300))), "y z"]
    words, words_D = ngrams.word_hashes(texts)
    grams, grams_D = ngrams.ngram_hashes(words, words_D, 5)
    grams = (grams >> np.uint64(32)).astype(np.uint32)
    minima = near_duplicates._minima(grams, grams_D, 16)
    constants = ngrams.mix(np.arange(1, 33, dtype=np.uint64)) & np.uint64(0xFFFFFFFF)
    start = 0
    for row, number in zip(minima, grams_D, strict=True):
        for h in range(16):
            a, b = int(constants[h]) | 1, int(constants[16 + h])
            values = [(a * int(x) + b) % 2**32 for x in grams[start : start + number]]
            assert row[h] == min(values, default=0)
        start += number


def test_texts_without_words_are_near_duplicates_only_of_themselves():
    rows = near_duplicates.buckets(["!?", "...", "!?", "word"], SETTINGS)
    assert (rows[0] == rows[2]).all() and not (rows[0] == rows[1]).any() and not (rows[0] == rows[3]).any()


def test_a_text_has_the_same_buckets_beside_any_others():
    texts = [f"text number {i} has {i * i} words and {i % 3} more of them" for i in range(50)]
    together = near_duplicates.buckets(texts, SETTINGS)
    assert all(
        np.array_equal(together[i], near_duplicates.buckets([text], SETTINGS)[0]) for i, text in enumerate(texts)
    )


def test_characters_are_compared_where_words_have_no_spaces():
    text = "今天天气很好我们一起去公园散步然后回家吃饭看书睡觉"
    rows = near_duplicates.buckets(
        [text, text.replace("公园", "学校"), text[::-1]], NearDuplicates(drop=True, buckets=100, hashes=2)
    )
    assert (rows[0] == rows[1]).any() and not (rows[0] == rows[2]).any()
