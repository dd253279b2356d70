"""Collocations: phrases, their scores, sentence bounds, and sampling of large corpora."""

import numpy as np
import pytest

from bertjax.data.store import Split
from bertjax.data.text import lexicon
from tests.ragged import VOCABULARY

FREQUENT, RARE = (100, 301 + 50, 101), (110, 111, 112)


def write(folder, tokens: np.ndarray, sentence_length: int) -> Split:
    sentences = np.append(np.arange(0, len(tokens), sentence_length), len(tokens))
    tokens.astype("<u2").tofile(folder / "train.tokens.bin")
    sentences.astype("<i8").tofile(folder / "train.sentences.bin")
    np.array([0, len(sentences) - 1], "<i8").tofile(folder / "train.documents.bin")
    return Split(folder, "train", "<u2")


@pytest.fixture
def split(tmp_path) -> Split:
    """Random words of one and two tokens, and two phrases that occur 400 and 4 times."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(120, 300, 60_000)
    tokens[rng.random(60_000) < 0.2] += 187
    for phrase, times in ((FREQUENT, 400), (RARE, 4)):
        for start in rng.choice(6_000, times, replace=False) * 10:
            tokens[start : start + 3] = phrase
    return write(tmp_path, tokens, 20)


def test_phrases_are_found_whole_and_chance_pairs_are_not(split):
    """The frequent phrase has a word of two tokens and a word of one; the rare one is below MIN_COUNT."""
    mined = lexicon.collocations(split, VOCABULARY)
    assert [tuple(phrase.tolist()) for phrase in mined] == [FREQUENT]


def test_the_score_by_hand(tmp_path, monkeypatch):
    """`a b` 8 times, `a` 10 times, `b` 9 times among 1000 words: 1000 * (8 - 5) / (10 * 9) = 33.3."""
    tokens = np.arange(1000) % 100 + 150
    tokens[np.arange(8) * 20] = 10
    tokens[np.arange(8) * 20 + 1] = 11
    tokens[[500, 520, 540]] = [10, 10, 11]
    split = write(tmp_path, tokens, 20)
    for threshold, phrases in ((33.3, 1), (33.4, 0)):
        monkeypatch.setattr(lexicon, "THRESHOLD", threshold)
        monkeypatch.setattr(lexicon, "LONGEST", 2)
        mined = [tuple(phrase.tolist()) for phrase in lexicon.collocations(split, VOCABULARY)]
        assert mined.count((10, 11)) == phrases


def test_no_phrase_crosses_a_sentence(tmp_path):
    rng = np.random.default_rng(0)
    tokens = rng.integers(120, 300, 40_000)
    tokens[9::10], tokens[10::10] = 10, 11
    assert lexicon.collocations(write(tmp_path, tokens, 10), VOCABULARY) == []


def test_a_large_corpus_is_sampled_everywhere(split, monkeypatch):
    monkeypatch.setattr(lexicon, "SAMPLE_TOKENS", 20_000)
    tokens, boundary = lexicon._sample(split)
    assert 18_000 < len(tokens) <= 20_000 and boundary[0]
    mined = lexicon.collocations(split, VOCABULARY)
    assert [tuple(phrase.tolist()) for phrase in mined] == [FREQUENT]
