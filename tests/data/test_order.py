"""Order of rows and sources: permutations, shares, and random access."""

from types import SimpleNamespace

import numpy as np
import pytest

from bertjax.data.order import BLOCK, PERIOD, Epochs, Turns
from bertjax.data.random import permuted


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


def test_unshuffled_rows_have_the_order_of_the_plan():
    epoch, plan, row = epochs(5, 3, shuffle=False).at(np.arange(16))
    assert row.tolist() == [0, 1, 2, 3, 4, 0, 1, 2] * 2
    assert plan.tolist() == [0] * 5 + [1] * 3 + [0] * 5 + [1] * 3
    assert epoch.tolist() == [0] * 5 + [1] * 3 + [2] * 5 + [3] * 3


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
