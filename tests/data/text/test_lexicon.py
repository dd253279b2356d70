"""Phrase lexicons: matching, mining, files, and masking of phrases."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.config import DataConfig, TokenizerConfig
from bertjax.data.masking import PhraseMasking
from bertjax.data.preparation.prepare import prepare
from bertjax.data.store import Split, TokenStore
from bertjax.data.text import lexicon
from bertjax.data.text.lexicon import Lexicon, Words
from tests.ragged import SEP, VOCABULARY

PLANTED = ("klm nop", "qrst uvwx")


def lexicon_of(phrases: list[tuple[int, ...]]) -> Lexicon:
    """A lexicon of phrases in token ids, each token a word."""
    hashes = {}
    for phrase in phrases:
        tokens, boundary = np.array(phrase), np.arange(len(phrase)) == 0
        words = Words.of(tokens, boundary, VOCABULARY)
        *_, whole = words.hashes(tokens, VOCABULARY.size, len(phrase))
        hashes.setdefault(len(phrase), set()).add(int(whole[0]))
    return Lexicon({length: np.array(sorted(known), np.uint64) for length, known in hashes.items()}, "")


def units_by_loop(words: list[int], phrases: list[tuple[int, ...]]) -> list[int]:
    """The plain definition: all phrases of the greatest length from the left, then those of the next length."""
    owner = [None] * len(words)
    for length in sorted({len(phrase) for phrase in phrases}, reverse=True):
        for start in range(len(words) - length + 1):
            inside = range(start, start + length)
            if tuple(words[start : start + length]) in phrases and all(owner[i] is None for i in inside):
                for i in inside:
                    owner[i] = start
    return [i for i, start in enumerate(owner) if start is None or start == i]


@given(
    st.lists(st.lists(st.integers(10, 13), min_size=1, max_size=40), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(10, 13), min_size=2, max_size=5).map(tuple), min_size=1, max_size=6),
)
@settings(max_examples=300, deadline=None)
def test_phrases_are_matched_longest_first_and_from_the_left(texts, phrases):
    tokens = np.concatenate([[*text, SEP] for text in texts])
    words = Words.of(tokens, np.arange(len(tokens)) == 0, VOCABULARY)
    units = lexicon_of(phrases).units(words, tokens, VOCABULARY.size)
    starts = np.cumsum([0, *map(len, texts)])
    expected = [start + unit for start, text in zip(starts, texts) for unit in units_by_loop(text, phrases)]
    np.testing.assert_array_equal(units, expected)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Random words with two pairs of words that always occur together."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghij"), rng.integers(2, 6))) for _ in range(300)] + list(PLANTED)
    shares = np.array([*[0.99 / 300] * 300, 0.006, 0.004])
    texts = [" ".join(" ".join(rng.choice(words, 20, p=shares)) + "." for _ in range(60)) for _ in range(50)]
    path = tmp_path_factory.mktemp("planted") / "corpus.txt"
    path.write_text("\n\n".join(texts))
    return path


def prepared(corpus: Path, kind: str) -> TokenStore:
    sizes = TokenizerConfig(kind=kind, vocab_size=400)
    return prepare(DataConfig(str(corpus), heldout_share=0.2, tokenizer=sizes, store=str(corpus.parent / kind)))


@pytest.fixture(scope="module")
def planted(corpus) -> TokenStore:
    return prepared(corpus, "unigram")


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_words_that_occur_together_are_mined_with_any_tokenizer(corpus, kind):
    store = prepared(corpus, kind)
    mined = lexicon.open_lexicon(store, "mine", 1000)
    (file,) = (store.path / "lexicons").iterdir()
    assert {*PLANTED} <= {*file.read_text().splitlines()} and len(mined.hashes[2]) < 6


def test_a_store_is_mined_once_and_its_file_is_an_ordinary_lexicon(planted):
    first = lexicon.open_lexicon(planted, "mine", 1000)
    (file,) = (planted.path / "lexicons").iterdir()
    written = file.stat().st_mtime_ns
    again = lexicon.open_lexicon(planted, "mine", 1000)
    assert again.fingerprint == first.fingerprint and file.stat().st_mtime_ns == written
    file.unlink()
    assert lexicon.open_lexicon(planted, "mine", 1000).fingerprint == first.fingerprint
    assert lexicon.open_lexicon(planted, str(file), 1).fingerprint == first.fingerprint
    lexicon.open_lexicon(planted, "mine", 1)
    few, many = sorted((file.read_text().splitlines() for file in (planted.path / "lexicons").iterdir()), key=len)
    assert few == many[:1], "the size keeps the best"
    bound = PhraseMasking(lexicon=str(file)).bind(planted)
    assert bound.phrases.fingerprint == first.fingerprint and bound.fingerprints == {"lexicon": first.fingerprint}


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
