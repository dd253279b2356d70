"""Examples of consecutive text: every token once per epoch, full rows, and sentence bounds."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.formats.runs import ORDERS, DocSentences, FullSentences, SentenceReordering
from tests.data.formats import splits
from tests.data.formats.splits import CLS, FIRST_TOKEN, SEP, document_of, made, split_of

CUTS = ("tokens", "sentences")
FORMATS = [examples_class(cut=cut) for examples_class in (FullSentences, DocSentences) for cut in CUTS]
every_format = pytest.mark.parametrize("examples", FORMATS, ids=lambda examples: f"{examples.kind}-{examples.cut}")


def sentences_of(split) -> list[list[list[int]]]:
    """The tokens of every sentence of every document."""
    bounds, documents = split.sentences, split.documents
    return [
        [split.tokens[bounds[s] : bounds[s + 1]].tolist() for s in range(start, stop)]
        for start, stop in zip(documents[:-1], documents[1:])
    ]


def cut_stream(stream: list[int], room: int) -> list[list[int]]:
    """Every `room` places of a stream, without the separators at either end."""
    cuts = []
    for start in range(0, len(stream), room):
        cut = stream[start : start + room]
        cut = cut[1:] if cut[0] == SEP else cut
        cut = cut[:-1] if cut and cut[-1] == SEP else cut
        cuts += [cut] if cut else []
    return cuts


def filled(sentences: list[list[int]], room: int) -> list[list[int]]:
    """Sentences are added to an example until one does not fit; a [SEP] before a sentence belongs to it."""
    examples = [[]]
    for sentence in sentences:
        text = [token for token in sentence if token != SEP]
        for piece in (text[start : start + room] for start in range(0, len(text), room)):
            separator = [SEP] if sentence[0] == SEP and piece[0] == text[0] and examples[-1] else []
            if len(examples[-1]) + len(separator) + len(piece) > room:
                examples.append([])
                separator = []
            examples[-1] += separator + piece
    return examples


def expected(examples, split, room: int) -> list[list[int]]:
    documents = sentences_of(split)
    if isinstance(examples, FullSentences):
        documents = [[[SEP] * (s == 0 and d > 0) + t for s, t in enumerate(text)] for d, text in enumerate(documents)]
        documents = [sum(documents, [])]
    if examples.cut == "sentences":
        return [example for document in documents for example in filled(document, room)]
    return [example for document in documents for example in cut_stream(sum(document, []), room)]


@every_format
@given(splits.documents, st.integers(3, 70))
@settings(max_examples=100, deadline=None)
def test_an_epoch_has_every_token_once(examples, tmp_path_factory, documents, seq_len):
    split = split_of(documents)
    block = made(examples, split, seq_len)
    assert block.ranges.dtype == np.int64 and block.lost_tokens == block.repeated_tokens == 0
    stored = splits.examples_of(examples, split, block.ranges, tmp_path_factory.getbasetemp() / f"{examples.kind}.npy")
    taken = splits.token_lists(stored)
    assert taken == [[CLS, *text, SEP] for text in expected(examples, split, seq_len - 2)]
    text = [token for example in taken for token in example if token >= FIRST_TOKEN]
    assert text == split.tokens.tolist()
    lengths = stored.lengths()
    assert lengths.tolist() == [len(example) for example in taken] and lengths.max() <= seq_len


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


def test_orders_and_cuts_are_equally_likely():
    labels = made(SentenceReordering(), split_of([[5] * 4000] * 20), 64).ranges[:, -1]
    counts = np.bincount(labels, minlength=len(ORDERS))
    shares = np.repeat([1 / 3, 1 / 6, 1 / 18], [1, 2, 6])
    deviation = np.sqrt(len(labels) * shares * (1 - shares))
    assert (np.abs(counts - len(labels) * shares) < 4 * deviation).all()
    # Three sentences can be cut into three segments in one way and into two segments in two ways.
    ranges = made(SentenceReordering(), split_of([[3, 4, 5]] * 6000), 64).ranges
    in_two = ranges[np.isin(ranges[:, -1], [1, 2])]
    first = np.where(in_two[:, -1] == 1, in_two[:, 1] - in_two[:, 0], in_two[:, 3] - in_two[:, 2])
    assert set(first) == {3, 7}
    assert abs(np.mean(first == 3) - 0.5) < 4 * np.sqrt(0.25 / len(first))
    in_three = ranges[ranges[:, -1] > 2]
    assert len(in_three) and (np.sort(in_three[:, 1:-1:2] - in_three[:, :-1:2]) == [3, 4, 5]).all()
