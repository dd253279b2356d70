"""Windows of long texts: bounds, coverage, and the window that each token belongs to."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.labeled.windows import most_context, windows


@pytest.mark.parametrize(
    "length, room, stride, expected",
    [
        (5, 5, 2, [[0, 5]]),
        (6, 5, 2, [[0, 5], [2, 6]]),
        (10, 4, 2, [[0, 4], [2, 6], [4, 8], [6, 10]]),
        (10, 4, 9, [[0, 4], [4, 8], [8, 10]]),  # a stride longer than a window would lose tokens
        (1, 1, 1, [[0, 1]]),
    ],
)
def test_windows_as_literals(length, room, stride, expected):
    assert windows(length, room, stride).tolist() == expected


@settings(deadline=None)
@given(length=st.integers(1, 80), room=st.integers(1, 60), stride=st.integers(1, 60))
def test_every_token_is_in_a_window_and_belongs_to_one(length, room, stride):
    bounds = windows(length, room, stride)
    owners = most_context(bounds)
    assert len(owners) == length
    starts, stops = bounds[owners].T
    tokens = np.arange(length)
    assert np.all((starts <= tokens) & (tokens < stops))
    assert np.all(np.diff(bounds, axis=1) <= room) and np.all(np.diff(bounds[:, 0]) > 0)
    for token, owner in zip(tokens, owners):
        context = [min(token - start, stop - 1 - token) for start, stop in bounds if start <= token < stop]
        assert min(token - bounds[owner, 0], bounds[owner, 1] - 1 - token) == max(context)


def test_a_token_belongs_to_the_window_with_the_longest_shorter_side():
    assert most_context(np.array([[0, 6], [3, 9]])).tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
