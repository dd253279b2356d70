"""The order of pruning on importances that are known."""

import numpy as np
import pytest

from bertjax.analysis.pruning import SHARES, by_importance, in_order, kept_up_to, least_first, mask_without


def test_ties_are_broken_by_the_next_key():
    changes, losses = np.array([[0.0, 1.0], [0.0, -1.0]]), np.array([[5.0, 0.0], [2.0, 9.0]])
    assert least_first(changes, losses).tolist() == [3, 2, 0, 1]


def test_masks_in_an_order():
    masks = in_order((2, 5), np.arange(10)[::-1])
    assert len(masks) == len(SHARES) == 11
    for tenths, mask in enumerate(masks):
        assert mask.ravel().tolist() == [1.0] * (10 - tenths) + [0.0] * tenths
    np.testing.assert_array_equal(mask_without((2, 2), [1, 2]), [[1, 0], [0, 1]])


def test_importance_is_computed_again_with_what_is_left():
    """Entry 1 becomes important when entry 0 is off; entries that are off are not pruned twice."""
    asked = []

    def importance_of(mask):
        asked.append(mask.copy())
        importance = np.arange(1.0, 11.0).reshape(1, 10)
        importance[0, 1] = 1.5 if mask[0, 0] else 100.0
        return importance

    masks, order = by_importance((1, 10), importance_of)
    assert order.tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9, 1]
    assert [int(mask.sum()) for mask in masks] == list(range(10, -1, -1))
    assert [int(mask.sum()) for mask in asked] == list(range(10, 0, -1))


def test_layers_are_normalized_before_they_are_compared():
    """All of the first layer is above all of the second; relative to its norm, its first entry is the least."""
    importance = np.array([[10.0, 1000.0], [0.5, 0.6]])
    _, order = by_importance((2, 2), lambda mask: importance)
    assert order.tolist() == [0, 2, 3, 1]


@pytest.mark.parametrize(
    "scores, share",
    [
        ([1.0] * 11, 1.0),
        ([1.0, 0.95, 0.91, 0.89, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 0.2),
        ([1.0, *[0.0] * 10], 0.0),
        ([-2.0, -2.1, -2.19, -2.3, *[-9.0] * 7], 0.2),
        ([0.0, 0.0, -0.1, *[0.0] * 8], 0.1),
    ],
)
def test_the_share_up_to_which_a_score_is_kept(scores, share):
    assert kept_up_to(scores) == share
