"""n-grams of words: those of a plain implementation, for any division into blocks and in any script."""

import random
import re
import unicodedata

import numpy as np
import pytest

from bertjax.data.text import ngrams

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


def test_hashes_do_not_depend_on_the_process():
    """Signatures of documents are compared across processes and machines."""
    words, counts = ngrams.word_hashes(["Near duplicates, found."])
    assert counts.tolist() == [3] and words.tolist() == GOLDEN
