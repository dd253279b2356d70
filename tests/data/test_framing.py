"""Frames of examples: places of [CLS] and [SEP], segments and labels of tokens, and trimming of long examples."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.data.framing import Frame, kept_of_pair, most_context, special_tokens, truncate, windows
from bertjax.runtime.errors import UserError

CLS, SEP = -1, -2

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


def test_a_pair_and_a_single_sentence_are_cut():
    a, b = np.array([5, 5, 9, 1, 4]), np.array([5, 2, 1, 9, 5])
    assert np.stack(kept_of_pair(a, b, 7)).tolist() == [[4, 5, 6, 1, 4], [3, 2, 1, 6, 3]]
    assert truncate([[1, 2, 3, 4], [5]], None, 5) == ([[1, 2, 3], [5]], None, {"cut to 5 tokens": 1})
    assert truncate([[1, 2, 3], [5]], None, 5) == ([[1, 2, 3], [5]], None, {})


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), max_size=5))
def test_a_frame_holds_any_number_of_parts(examples):
    """`examples` are the lengths of the parts of each."""
    parts = np.array([len(lengths) for lengths in examples], np.int64)
    text_lengths = np.array(list(itertools.chain.from_iterable(examples)), np.int64)
    frame, text = Frame.of(text_lengths, parts), itertools.count()
    expected = [[CLS, *itertools.chain(*([*itertools.islice(text, n), SEP] for n in lengths))] for lengths in examples]
    tokens = frame.tokens(np.arange(text_lengths.sum()), CLS, SEP)
    assert tokens.tolist() == list(itertools.chain(*expected)) and tokens.dtype == np.int32
    assert np.diff(frame.offsets).tolist() == [special_tokens(len(lengths)) + sum(lengths) for lengths in examples]
    assert frame.is_text.tolist() == [token not in (CLS, SEP) for token in tokens]
    assert frame.part_lengths.sum() == len(tokens) and (tokens[frame.separators] == SEP).all()


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


@pytest.mark.parametrize("second, least", [(None, 2), ([[3]], 3)])
def test_an_example_needs_room_for_its_special_tokens(second, least):
    truncate([[1, 2]], second, least)
    with pytest.raises(UserError, match=rf"^seq_len={least - 1} is too short; .* take {least}: raise"):
        truncate([[1, 2]], second, least - 1)


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
