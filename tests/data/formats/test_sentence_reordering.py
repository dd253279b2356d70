"""Sentence reordering: segments, their orders as labels, and separators."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.formats.sentence_reordering import ORDERS, SentenceReordering
from tests.data.formats import splits
from tests.data.formats.splits import CLS, FIRST_TOKEN, SEP, document_of, made, split_of


def test_the_orders_are_all_of_one_two_and_three_segments():
    assert ORDERS == [(0,), *itertools.permutations(range(2)), *itertools.permutations(range(3))]
    assert len(ORDERS) == 1 + 2 + 6


@given(splits.documents, st.integers(5, 70), st.integers(0, 2**40))
@settings(max_examples=100, deadline=None)
def test_the_label_restores_the_text_and_every_token_occurs_once(documents, seq_len, seed):
    split = split_of(documents)
    block = made(SentenceReordering(), split, seq_len, seed)
    times = np.zeros(len(split.tokens), int)
    for *ranges, label in block.ranges.tolist():
        segments = [(start, stop) for start, stop in zip(ranges[::2], ranges[1::2], strict=True) if stop > start]
        order = ORDERS[label]
        assert len(segments) == len(order)
        restored = [segments[order.index(place)] for place in range(len(order))]
        for (_, stop), (start, _) in itertools.pairwise(restored):
            assert stop == start and start in split.sentences
        begin, end = restored[0][0], restored[-1][1]
        assert document_of(split, begin) == document_of(split, end - 1)
        assert end - begin + 1 + len(order) <= seq_len
        times[begin:end] += 1
    assert (times == 1).all() and block.lost_tokens == block.repeated_tokens == 0


def test_counts_and_orders_have_equal_chances():
    labels = made(SentenceReordering(), split_of([[5] * 4000] * 20), 64).ranges[:, -1]
    counts = np.bincount(labels, minlength=len(ORDERS))
    shares = np.repeat([1 / 3, 1 / 6, 1 / 18], [1, 2, 6])
    deviation = np.sqrt(len(labels) * shares * (1 - shares))
    assert (np.abs(counts - len(labels) * shares) < 4 * deviation).all()


def test_all_ways_to_cut_are_equally_likely():
    """Three sentences can be cut into three segments in one way and into two segments in two ways."""
    ranges = made(SentenceReordering(), split_of([[3, 4, 5]] * 6000), 64).ranges
    in_two = ranges[np.isin(ranges[:, -1], [1, 2])]
    first = np.where(in_two[:, -1] == 1, in_two[:, 1] - in_two[:, 0], in_two[:, 3] - in_two[:, 2])
    assert set(first) == {3, 7}
    assert abs(np.mean(first == 3) - 0.5) < 4 * np.sqrt(0.25 / len(first))
    in_three = ranges[ranges[:, -1] > 2]
    assert len(in_three) and (np.sort(in_three[:, 1:-1:2] - in_three[:, :-1:2]) == [3, 4, 5]).all()


def test_examples_have_a_separator_after_each_segment(tmp_path):
    split = split_of([[2, 3, 4]] * 50)
    block = made(SentenceReordering(), split, 32)
    examples = splits.examples_of(SentenceReordering(), split, block.ranges, tmp_path / "ranges.npy")
    ragged = examples.take(np.arange(len(examples)))
    np.testing.assert_array_equal(ragged.lengths, examples.lengths())
    assert not ragged.segments.any()
    for tokens, ranges in zip(splits.token_lists(examples), block.ranges.tolist(), strict=True):
        expected = [CLS]
        for start, stop in zip(ranges[:-1:2], ranges[1::2], strict=True):
            expected += [*range(FIRST_TOKEN + start, FIRST_TOKEN + stop), SEP] if stop > start else []
        assert tokens == expected
    np.testing.assert_array_equal(ragged.labels["permutation"], block.ranges[:, -1])
    assert {len(ORDERS[label]) for label in ragged.labels["permutation"]} == {1, 2, 3}
