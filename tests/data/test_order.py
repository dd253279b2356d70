"""Order of rows and sources: permutations, shares, and random access."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.order import BLOCK, PERIOD, Epochs, Turns
from bertjax.data.packing import assign, mixed, pack
from bertjax.data.random import bits, permuted, uniform


def epochs(*rows: int, shuffle: bool = True) -> Epochs:
    return Epochs(tuple(SimpleNamespace(counts=SimpleNamespace(rows=count)) for count in rows), "rows", 0, shuffle)


def test_an_epoch_has_each_row_of_its_plan_once():
    source = epochs(50, 70, 60)
    epoch, plan, row = source.at(np.arange(2 * 180))
    for number in range(6):
        here = epoch == number
        assert (plan[here] == number % 3).all()
        np.testing.assert_array_equal(np.sort(row[here]), np.arange((50, 70, 60)[number % 3]))
    assert (row[epoch == 0] != row[epoch == 3]).any()
    assert (np.diff(epoch) >= 0).all()


def test_an_ordinal_needs_no_other_ordinal():
    source = epochs(1000, 1001)
    everything = source.at(np.arange(10_000))
    for ordinal in (0, 999, 1000, 2001, 9_999):
        np.testing.assert_array_equal(np.ravel(source.at(np.array([ordinal]))), [part[ordinal] for part in everything])
    assert source.at(np.array([10**15]))[0] > 10**11
    size = 2 * BLOCK + 100
    ordinals = np.append(np.arange(size - 200, size + 200), np.arange(BLOCK - 5, BLOCK + 5))
    epoch, _, row = epochs(size).at(ordinals)
    np.testing.assert_array_equal(row, permuted(0, "rows", epoch, ordinals % size, size))
    assert set(epoch) == {0, 1}


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.5), (0.9, 0.1), (0.7, 0.2999, 0.0001), (1 / 3, 1 / 3, 1 / 3)])
def test_sources_take_turns_in_their_shares(shares):
    sources, ordinals = Turns(shares).at(np.arange(4 * PERIOD))
    for source, share in enumerate(shares):
        own = ordinals[sources == source]
        np.testing.assert_array_equal(own, np.arange(len(own)))  # each source is read in its own order, no gap
        assert len(own) == pytest.approx(share * 4 * PERIOD, abs=4 * (1 if share * PERIOD >= 1 else 2))
        assert len(own) >= 4
        if 0.05 < share < 1:  # spread evenly: no stretch of the table misses a source
            assert np.diff(np.flatnonzero(sources == source)).max() <= 1 / share + 2


def test_a_rare_source_has_its_turns_in_the_middle_of_equal_parts():
    sources, _ = Turns((1 - 4 / PERIOD, 4 / PERIOD)).at(np.arange(PERIOD))
    expected = (np.arange(4) + 0.5) * PERIOD / 4
    np.testing.assert_allclose(np.flatnonzero(sources == 1), expected, atol=2)


def chi_square(counts: np.ndarray) -> float:
    """Pearson's statistic against equal counts, in standard deviations from its mean (normal approximation)."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


def test_golden_values():
    """Earlier runs are reproducible only while these numbers do not change."""
    assert bits(0, "mask/choose", 0, 0, np.arange(4)).tolist() == [2640162442, 211070657, 836413982, 2236691080]
    assert permuted(1, "rows", 2, np.arange(10), 10).tolist() == [3, 2, 5, 8, 1, 0, 9, 6, 7, 4]


def test_numbers_are_uniform_and_independent():
    size, bins = 200_000, 100
    for words in (
        (np.arange(size), 0, 0),
        (0, np.arange(size), 0),
        (0, 0, np.arange(size)),
        (0, 2**32 * np.arange(size), 0),
    ):
        drawn = uniform(11, "a", *words)
        assert drawn.min() >= 0.0 and drawn.max() < 1.0
        assert abs(chi_square(np.histogram(drawn, bins, (0, 1))[0])) < 5
    drawn = uniform(0, "a", 0, np.arange(400)[:, None], np.arange(500))
    other_stream = uniform(0, "b", 0, np.arange(400)[:, None], np.arange(500))
    for left, right in ((drawn[:, 1:], drawn[:, :-1]), (drawn[1:], drawn[:-1]), (drawn, other_stream)):
        joint = np.histogram2d(left.ravel(), right.ravel(), 16, ((0, 1), (0, 1)))[0]
        assert abs(chi_square(joint)) < 5
    ids = np.arange(5_000)
    for bit in (0, 1, 17, 40):
        changed = bits(0, "a", 0, ids, 0) ^ bits(0, "a", 0, ids ^ (1 << bit), 0)
        assert abs(np.bitwise_count(changed).mean() - 16) < 0.3


@given(seed=st.integers(0, 2**63), size=st.integers(1, 2_000), epoch=st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_permuted_is_a_bijection(seed, size, epoch):
    order = permuted(seed, "rows", epoch, np.arange(size), size)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(size))


@pytest.mark.parametrize("size", [3, 5, 12, 40])
def test_every_order_of_two_neighbors_is_equally_likely(size):
    epochs = 20_000
    orders = permuted(0, "rows", np.repeat(np.arange(epochs), size), np.tile(np.arange(size), epochs), size)
    first, second = orders.reshape(epochs, size)[:, :2].T
    counts = np.bincount(first * size + second, minlength=size**2).reshape(size, size)
    assert abs(chi_square(counts[~np.eye(size, dtype=bool)])) < 5


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
