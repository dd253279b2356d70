"""Segment pairs: trimming, labels, random partners and short pairs."""

import hashlib

import numpy as np
import pytest

from bertjax.data.formats.segments import SegmentPairs
from tests.data.formats import splits
from tests.data.formats.splits import split_of

A_START, A_STOP, B_START, B_STOP, IS_RANDOM = range(5)


def ranges_of(*args) -> np.ndarray:
    return splits.made(*args).ranges


@pytest.fixture(scope="module")
def large():
    return splits.large()


def test_trimming_at_random_ends_leaves_b_in_the_text_after_a(large):
    """Without trimming A and B are adjacent; a trim of r tokens separates them by at most r."""
    ranges = ranges_of(SegmentPairs(trim="random_end"), large, 128, 0)
    follows = ranges[ranges[:, IS_RANDOM] == 0]
    gap = follows[:, B_START] - follows[:, A_STOP]
    assert (gap >= 0).all() and (gap > 0).any()
    untrimmed = follows[:, B_STOP] - follows[:, A_START] < 125
    assert (gap[untrimmed] == 0).all()


def test_both_trims_keep_the_same_lengths_and_coins_are_fair(large):
    outer, ends = (ranges_of(SegmentPairs(trim=trim), large, 128, 0) for trim in ("outer_ends", "random_end"))
    for start, stop in ((A_START, A_STOP), (B_START, B_STOP)):
        np.testing.assert_array_equal(outer[:, stop] - outer[:, start], ends[:, stop] - ends[:, start])
    cut = np.random.default_rng(0).integers(100, 200, 2_000)
    split = split_of([[100, length] for length in cut])
    trimmed = ranges_of(SegmentPairs(short_seq_prob=0, random_next=0), split, 128, 0)
    assert len(trimmed) == 2_000
    b_front = trimmed[:, B_START] - split.sentences[1::2]
    share = b_front.sum() / (cut - (trimmed[:, B_STOP] - trimmed[:, B_START])).sum()
    assert share == pytest.approx(0.5, abs=0.01)
    assert b_front.std() > 3  # coins of their own, not one for the whole trim nor an even split


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [((3, 4), (3, 4)), ((3, 20), (3, 7)), ((20, 3), (7, 3)), ((9, 8), (5, 5)), ((5, 6), (5, 5)), ((6, 5), (5, 5))],
)
@pytest.mark.parametrize("trim", ["random_end", "outer_ends"])
def test_the_longer_segment_loses_tokens(lengths, kept, trim):
    split = split_of([list(lengths)] * 2)
    first = ranges_of(SegmentPairs(short_seq_prob=0, random_next=0, trim=trim), split, 13, 0)[0]
    assert (first[A_STOP] - first[A_START], first[B_STOP] - first[B_START]) == kept


def test_the_partner_is_any_other_document():
    ranges = ranges_of(SegmentPairs(random_next=1.0), split_of([[30] * 600] * 4), 64, 3)
    length = 30 * 600
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (ranges[:, A_START] // length, ranges[:, B_START] // length), 1)
    np.testing.assert_array_equal(pairs.diagonal(), 0)
    assert (pairs[~np.eye(4, dtype=bool)] > pairs.sum() / 12 * 0.7).all()


def test_without_random_pairs_the_chunks_cover_the_text():
    split = split_of([[7, 4, 9, 3, 8, 2, 6, 5], [5, 5, 5, 5, 5, 5]])
    ranges = ranges_of(SegmentPairs(short_seq_prob=0.0, random_next=0.0, trim="outer_ends"), split, 200, 0)
    np.testing.assert_array_equal(ranges[:, [A_START, B_STOP]], [[0, 44], [44, 74]])


def test_the_unused_sentences_return_after_a_random_pair():
    split = split_of([[5] * 40] * 2)
    ranges = ranges_of(SegmentPairs(short_seq_prob=0.0, random_next=1.0), split, 53, 1)
    first = ranges[ranges[:, A_START] < 200]
    np.testing.assert_array_equal(first[1:, A_START], first[:-1, A_STOP])
    assert first[0, A_START] == 0 and first[-1, A_STOP] == 200


def test_short_pairs_have_their_share():
    split = split_of([[1] * 40_000] * 2)
    lengths = ranges_of(SegmentPairs(short_seq_prob=0.3), split, 103, 0)[:, :4] @ [-1, 1, -1, 1]
    assert (lengths < 100).mean() == pytest.approx(0.3 * 98 / 99, abs=0.03)


def test_golden_plan():
    split = split_of([[5, 9, 2, 7], [4, 4, 8], [6, 3]])
    assert ranges_of(SegmentPairs(), split, 16, 42).tolist() == [
        [0, 5, 23, 31, 1],
        [8, 15, 16, 22, 0],
        [23, 27, 28, 37, 0],
        [39, 45, 16, 23, 1],
        [45, 48, 14, 23, 1],
    ]


@pytest.mark.parametrize(
    ("choices", "seq_len", "seed", "digest"),
    [
        ({}, 128, 0, "55e0817e746772d7"),
        ({"trim": "outer_ends", "short_seq_prob": 0.3, "random_next": 0.4}, 512, 3, "0af887a3f1c1ebd2"),
    ],
)
def test_golden_ranges(large, choices, seq_len, seed, digest):
    """A run that resumes after an update must see the same pairs."""
    ranges = ranges_of(SegmentPairs(**choices), large, seq_len, seed)
    assert hashlib.sha256(ranges.tobytes()).hexdigest()[:16] == digest
