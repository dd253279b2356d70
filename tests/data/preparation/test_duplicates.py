"""Duplicates as a dictionary finds them, MinHash as in theory, and clusters of near-duplicates as of a plain union."""

import random

import numpy as np
import pytest

from bertjax.data.config import NearDuplicates
from bertjax.data.preparation import duplicates
from bertjax.data.preparation.duplicates import find, record
from bertjax.data.preparation.steps import Key, digest
from bertjax.data.text import ngrams


@pytest.mark.parametrize("bucket, read", [(1 << 22, 1 << 18), (100, 64), (7, 1000)])
def test_all_but_the_first_in_the_corpus_are_duplicates(tmp_path, monkeypatch, bucket, read):
    monkeypatch.setattr(duplicates, "BUCKET_DOCUMENTS", bucket)
    monkeypatch.setattr(duplicates, "DOCUMENTS_PER_READ", read)
    rng = np.random.default_rng(0)
    texts, groups = [f"document {i}" for i in rng.integers(0, 700, 1000)], rng.integers(0, 3, 1000)
    keys = sorted({Key(*map(int, key)) for key in rng.integers(0, (3, 300, 1 << 40), (1000, 3))})
    keys = [key._replace(number=key.number << 8) for key in keys]  # packed numbers that end with a zero byte
    records = [record(digest(text), key, group) for text, key, group in zip(texts, keys, groups.tolist(), strict=True)]
    (tmp_path / "documents").write_bytes(b"".join(records[i] for i in rng.permutation(1000)))
    kept, dropped = find(tmp_path / "documents", tmp_path / "duplicates", 3)
    expected = [text in texts[:i] for i, text in enumerate(texts)]
    packed = np.array([key.packed() for key in keys], duplicates.PACKED_KEY)
    assert ngrams.are_among(packed, duplicates.load(tmp_path / "duplicates")).tolist() == expected
    assert kept == tuple(np.bincount(groups[~np.array(expected)])) and sum(kept) + sum(dropped) == 1000


BUCKETS = 3


def found(tmp_path, entries, exact=()):
    (tmp_path / "near").write_bytes(b"".join(duplicates.near_record(*entry) for entry in entries))
    (tmp_path / "exact").write_bytes(b"".join(sorted(key.packed() for key in exact)))
    return duplicates.find_near(tmp_path / "near", duplicates.load(tmp_path / "exact"), BUCKETS, [False, True])


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
    first, second = (duplicates.buckets(list(texts), SETTINGS) for texts in zip(*pairs))
    found = (first == second).any(axis=1)
    expected = np.array([1 - (1 - jaccard(*pair) ** SETTINGS.hashes) ** SETTINGS.buckets for pair in pairs])
    deviation = np.sqrt((expected * (1 - expected)).sum())
    assert abs(found.sum() - expected.sum()) <= 4 * deviation + 0.5
    unrelated = (first == np.roll(second, 1, axis=0)).any(axis=1)
    assert not unrelated.any()
