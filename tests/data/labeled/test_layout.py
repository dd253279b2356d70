"""Segments as [CLS] A [SEP] B [SEP], and what is cut where they do not fit."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.labeled.layout import cut, lay_out

segments = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=8)


def loop(a: list[int], b: list[int], room: int) -> tuple[list[int], list[int]]:
    """One token at a time from the longer segment, from B where both are as long: BERT's own rule."""
    a, b = list(a), list(b)
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    return a, b


@given(segments, st.integers(3, 40))
def test_a_pair_is_cut_as_the_loop_does(lengths, seq_len):
    first, second = [list(range(a)) for a, _ in lengths], [list(range(100, 100 + b)) for _, b in lengths]
    found_first, found_second, count = cut(first, second, seq_len)
    assert list(zip(found_first, found_second)) == [loop(a, b, seq_len - 3) for a, b in zip(first, second)]
    assert count == sum(a + b > seq_len - 3 for a, b in lengths)


def test_a_single_sentence_loses_its_end():
    assert cut([[1, 2, 3, 4], [5]], None, 5) == ([[1, 2, 3], [5]], None, 1)


def test_layout(store):
    tokenizer = store.tokenizer
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    pairs = lay_out([[20, 21], []], [[30], [31, tokenizer.unk_id]], tokenizer, {"label": np.array([1, 0])})
    assert pairs.tokens.tolist() == [cls, 20, 21, sep, 30, sep, cls, sep, 31, tokenizer.unk_id, sep]
    assert pairs.segments.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1]
    assert pairs.special.tolist() == [True, False, False, True, False, True, True, True, False, True, True]
    assert pairs.offsets.tolist() == [0, 6, 11] and pairs.ids.tolist() == [0, 1]
    single = lay_out([[20], [21, 22]], None, tokenizer, {})
    assert single.tokens.tolist() == [cls, 20, sep, cls, 21, 22, sep] and not single.segments.any()
    assert single.special.tolist() == [True, False, True, True, False, False, True]


def test_take_gives_examples_in_the_order_asked(store):
    ragged = lay_out([[20], [21, 22], [23]], None, store.tokenizer, {"label": np.arange(3)})
    ragged.token_labels["place"] = np.arange(len(ragged.tokens))
    taken = ragged.take(np.array([2, 0]))
    assert taken.ids.tolist() == [2, 0] and taken.labels["label"].tolist() == [2, 0]
    assert taken.token_labels["place"].tolist() == [7, 8, 9, 0, 1, 2]
    assert taken.tokens.tolist() == [*ragged.tokens[7:], *ragged.tokens[:3]]
    joined = type(ragged).join([taken, ragged.take(np.array([1]))])
    assert joined.token_labels["place"].tolist() == [7, 8, 9, 0, 1, 2, 3, 4, 5, 6]
