"""Packing of lengths and of examples: capacity, the number of rows, padding, and the weights of examples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.packing import assign, mixed, pack


def packed(lengths: np.ndarray, seq_len: int, most: int) -> np.ndarray:
    patterns = pack(np.bincount(lengths, minlength=seq_len + 1), most)
    return assign(lengths, patterns, max(pattern.examples for pattern in patterns))


def filled(rows_RN: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Tokens in each row."""
    return np.where(rows_RN >= 0, lengths[rows_RN], 0).sum(axis=1)


def best_fit_decreasing(lengths: np.ndarray, seq_len: int, most: int) -> int:
    """Rows that the textbook's algorithm needs, example by example."""
    rooms: list[list[int]] = []
    for length in sorted(lengths.tolist(), reverse=True):
        fitting = [row for row in rooms if row[0] >= length and row[1] < most]
        row = min(fitting, default=None)
        if row is None:
            row = [seq_len, 0]
            rooms.append(row)
        row[0] -= length
        row[1] += 1
    return len(rooms)


@pytest.mark.parametrize("is_mixed", [False, True])
@given(st.lists(st.integers(1, 40), min_size=1, max_size=200), st.integers(0, 20), st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_every_example_has_one_place_within_capacity(is_mixed, lengths, more, most):
    lengths, place = np.array(lengths), mixed if is_mixed else packed
    seq_len = int(lengths.max()) + more
    rows_RN = place(lengths, seq_len, most)
    np.testing.assert_array_equal(np.sort(rows_RN[rows_RN >= 0]), np.arange(len(lengths)))
    assert rows_RN.dtype == np.int32 and rows_RN.shape[1] <= most
    assert filled(rows_RN, lengths).max() <= seq_len and (rows_RN[:, 0] >= 0).all()
    assert (np.diff((rows_RN >= 0).astype(int), axis=1) <= 0).all()  # empty slots last
    slots = np.where(rows_RN >= 0, lengths[rows_RN], 0)
    assert is_mixed or (np.diff(slots, axis=1) <= 0).all()  # longest first
    np.testing.assert_array_equal(rows_RN, place(lengths, seq_len, most))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=120), st.integers(1, 6))
@settings(max_examples=200, deadline=None)
def test_there_are_as_few_rows_as_with_best_fit_of_single_examples(lengths, most):
    """Rows that fit equally well may be taken in another order where their number of examples is limited."""
    lengths = np.array(lengths)
    assert len(packed(lengths, 30, 200)) == best_fit_decreasing(lengths, 30, 200)
    assert len(packed(lengths, 30, most)) <= 1.1 * best_fit_decreasing(lengths, 30, most) + 1


def test_by_hand():
    lengths = np.array([3, 10, 4, 3, 7, 6, 3])
    assert packed(lengths, 10, 4).tolist() == [[1, -1], [5, 2], [4, 0], [3, 6]]
    assert packed(lengths, 10, 1).tolist() == [[1], [4], [5], [2], [0], [3], [6]]


@pytest.mark.parametrize(("seq_len", "most"), [(128, 8), (512, 32)])
def test_lengths_of_real_pairs_leave_no_padding(seq_len, most):
    """Sentence pairs average 81 tokens, most of BERT's pairs fill a row."""
    rng = np.random.default_rng(0)
    pairs = np.clip(rng.gamma(3, 27, 200_000), 11, seq_len).astype(np.int64)
    segments = np.where(rng.random(200_000) < 0.9, seq_len, rng.integers(5, seq_len + 1, 200_000))
    for lengths in (pairs, segments):
        rows_RN = packed(lengths, seq_len, most)
        assert filled(rows_RN, lengths).mean() > 0.99 * seq_len


def test_work_grows_with_the_number_of_lengths_and_not_of_examples():
    """A billion examples are packed as quickly as a thousand: only their histogram is looked at."""
    histogram = np.zeros(129, np.int64)
    histogram[[20, 50, 60, 128]] = 10**9
    patterns = pack(histogram, 8)
    assert len(patterns) < 20
    totals = np.zeros(129, np.int64)
    for pattern in patterns:
        for length, count in pattern.lengths:
            totals[length] += pattern.rows * count
    np.testing.assert_array_equal(totals, histogram)


def test_mixed_rows_hold_similar_numbers_of_examples():
    """In a mean over a row the weight of an example is 1 / n; without packing all weights are equal."""
    lengths = np.clip(np.random.default_rng(0).gamma(2.0, 7.0, 2000).astype(int), 3, 128)
    spread, rows = {}, {}
    for packing, rows_RN in (("lengths", packed(lengths, 128, 64)), ("mixed", mixed(lengths, 128, 64))):
        is_real_RN = rows_RN >= 0
        weights = np.broadcast_to(1.0 / is_real_RN.sum(axis=1)[:, None], rows_RN.shape)[is_real_RN]
        spread[packing], rows[packing] = weights.std() / weights.mean(), len(rows_RN)
    assert spread["mixed"] < 0.5 * spread["lengths"]
    assert rows["mixed"] <= 1.02 * rows["lengths"]
