"""Frames of examples: places of [CLS] and [SEP], segments and labels of tokens, and trimming of long examples."""

import dataclasses
import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.batch import core, place
from bertjax.data.examples import Ragged, Vocabulary, add_special_tokens
from bertjax.data.framing import most_context, truncate, windows

pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=8)


def drop_one_by_one(a: list[int], b: list[int], room: int) -> tuple[list[int], list[int]]:
    """BERT's rule as a loop: the longer segment loses its last token, or B if both are equally long."""
    a, b = list(a), list(b)
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    return a, b


@given(pairs, st.integers(3, 40))
def test_a_pair_is_cut_as_by_the_loop(lengths, seq_len):
    first, second = [list(range(a)) for a, _ in lengths], [list(range(100, 100 + b)) for _, b in lengths]
    cut_first, cut_second, notes = truncate(first, second, seq_len)
    assert list(zip(cut_first, cut_second)) == [drop_one_by_one(a, b, seq_len - 3) for a, b in zip(first, second)]
    too_long = sum(a + b > seq_len - 3 for a, b in lengths)
    assert notes == ({f"cut to {seq_len} tokens": too_long} if too_long else {})
    alone, _, notes = truncate(first, None, seq_len)
    assert alone == [ids[: seq_len - 2] for ids in first]
    assert sum(notes.values()) == sum(a > seq_len - 2 for a, _ in lengths)


def test_special_tokens_segments_and_labels(store):
    vocabulary, unk = Vocabulary.of(store.tokenizer), store.tokenizer.unk_id
    cls, sep = vocabulary.cls_id, vocabulary.sep_id
    of_tokens = {"place": (np.array([7, 8, 9], np.int32), -1)}
    pairs = add_special_tokens([[20, 21], []], [[30], [31, unk]], vocabulary, {"label": np.array([1, 0])}, of_tokens)
    assert pairs.tokens.tolist() == [cls, 20, 21, sep, 30, sep, cls, sep, 31, unk, sep]
    assert pairs.segments.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1]
    assert pairs.special.tolist() == [True, False, False, True, False, True, True, True, False, True, True]
    assert pairs.token_labels["place"].tolist() == [-1, -1, -1, -1, 7, -1, -1, -1, 8, 9, -1]
    assert pairs.offsets.tolist() == [0, 6, 11] and pairs.ids.tolist() == [0, 1]
    single = add_special_tokens([[20], [21, 22]], None, vocabulary, {}, of_tokens)
    assert single.tokens.tolist() == [cls, 20, sep, cls, 21, 22, sep] and not single.segments.any()
    assert single.special.tolist() == [True, False, True, True, False, False, True]
    assert single.token_labels["place"].tolist() == [-1, 7, -1, -1, 8, 9, -1]


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


def test_windows_of_a_long_text_take_no_more_memory_than_the_text():
    bounds = windows(200_000, 126, 64)
    tracemalloc.start()
    most_context(bounds)
    assert tracemalloc.get_traced_memory()[1] < 10 * 8 * 200_000
    tracemalloc.stop()


PAD, CLS_LAST_CLS, CLS_LAST_SEP, MASK = range(4)
FIRST = Vocabulary(40, PAD, CLS_LAST_CLS, CLS_LAST_SEP, MASK, special_ids=(PAD, CLS_LAST_CLS, CLS_LAST_SEP, MASK))
LAST = dataclasses.replace(FIRST, cls_last=True)
TEXTS = st.lists(st.lists(st.integers(4, 39), min_size=1, max_size=6), min_size=1, max_size=6)


def examples(first, second=None):
    """The examples in both layouts, with a label of every token of the last segment."""
    last = first if second is None else second
    numbers = np.concatenate([np.arange(len(ids)) for ids in last])
    return [add_special_tokens(first, second, one, {}, {"number": (numbers, -1)}) for one in (FIRST, LAST)]


@given(TEXTS, st.booleans())
def test_an_example_has_its_text_first_and_cls_in_a_segment_of_its_own(texts, pairs):
    before, after = examples(texts, texts[::-1] if pairs else None)
    np.testing.assert_array_equal(after.offsets, before.offsets)
    for a, b, labels, segments, ours in zip(
        before.token_lists(),
        after.token_lists(),
        *(np.split(values, before.offsets[1:-1]) for values in (before.token_labels["number"], before.segments)),
        np.split(np.arange(len(after.tokens)), after.offsets[1:-1]),
        strict=True,
    ):
        assert b.tolist() == [*a[1:], CLS_LAST_CLS]
        assert after.token_labels["number"][ours].tolist() == [*labels[1:], -1]
        assert after.segments[ours].tolist() == [*segments[1:], 2]
    assert (after.tokens[after.offsets[:-1] + after.cls_index] == CLS_LAST_CLS).all()
    assert (before.tokens[before.offsets[:-1] + before.cls_index] == CLS_LAST_CLS).all()
    assert (after.tokens[after.offsets[:-1] + after.text_index] >= 4).all()


def test_the_summary_of_packed_examples_is_read_at_cls():
    _, ragged = examples([[5, 6], [7], [8, 9, 10]])
    ragged = Ragged.join([ragged.take(np.array([2, 0])), ragged.take(np.array([1]))])
    arrays = core(place(ragged, np.array([[0, 2], [1, -1]]), 12, LAST))
    columns = arrays["summary_positions_BN"]
    np.testing.assert_array_equal(columns, [[4, 7], [3, 0]])
    assert (
        [arrays["tokens_BT"][0, column] for column in columns[0]]
        == [CLS_LAST_CLS, CLS_LAST_CLS]
        == [arrays["tokens_BT"][1, 3], CLS_LAST_CLS]
    )
    np.testing.assert_array_equal(arrays["positions_BT"][0, :8], [0, 1, 2, 3, 4, 0, 1, 2])
