"""Examples of consecutive text: every token once per epoch, full rows, and sentence bounds."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.formats.runs import DocSentences, FullSentences
from bertjax.data.formats.sentence_reordering import ORDERS, SentenceReordering
from bertjax.data.formats.token_document import TokenDocument
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


@given(st.sampled_from(FORMATS), splits.documents, st.integers(3, 70), st.integers(1, 30))
@settings(max_examples=150, deadline=None)
def test_the_size_of_blocks_changes_nothing(examples, documents, seq_len, at_once):
    split = split_of(documents)
    splits.assert_same(made(examples, split, seq_len, 0, at_once), made(examples, split, seq_len))


@every_format
def test_a_restricted_split_uses_only_its_documents_and_is_read_from_the_whole(examples, tmp_path):
    whole = splits.large()
    split = splits.restricted(whole, 100, 150)
    begin, end = split.sentences[split.documents[[0, -1]]]
    ranges = made(examples, split, 64, at_once=50).ranges
    np.testing.assert_array_equal(ranges[0, 0], begin)
    np.testing.assert_array_equal(ranges[1:, 0], ranges[:-1, 1])
    np.testing.assert_array_equal(ranges[-1, 1], end)
    taken = splits.token_lists(splits.examples_of(examples, whole, ranges, tmp_path / "ranges.npy"))
    assert taken == [[CLS, *text, SEP] for text in expected(examples, split, 62)]


class Offsets:
    """Offsets of a split that know which of them were read."""

    def __init__(self, values):
        self.values, self.read = values, set()

    def __getitem__(self, places):
        self.read |= set(places.tolist())
        return self.values[places]


@every_format
def test_a_row_reads_no_offset_but_the_ends_of_documents_inside_of_it(examples, tmp_path):
    """A search through all offsets reads 20 pages a row from a disk, and most rows have at most one such end."""
    split = splits.large()
    ranges = made(examples, split, 128).ranges
    stored = splits.examples_of(examples, split, ranges, tmp_path / "ranges.npy")
    bounds, documents = vars(stored)["_offsets"] = Offsets(split.sentences), Offsets(split.documents)
    stored.take(np.flatnonzero(ranges[:, 2] < 2))
    assert not bounds.read and not documents.read
    stored.take(np.arange(len(ranges)))
    edges = split.sentences[split.documents]
    inside = [end for start, stop, count, _ in ranges if count > 1 for end in edges[(edges > start) & (edges < stop)]]
    assert sorted(split.sentences[list(bounds.read)]) == sorted(inside)


@given(splits.documents, st.integers(4, 20), st.integers(1, 40), st.integers(1, 12), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_token_is_elsewhere_if_its_document_has_it_within_reach(
    tmp_path_factory, documents, seq_len, reach, words, at_tokens
):
    split = split_of(documents)
    tokens = FIRST_TOKEN + np.random.default_rng(0).integers(0, min(words, len(split.tokens)), len(split.tokens))
    split.tokens[:] = tokens
    examples = TokenDocument(reach=reach, cut="tokens" if at_tokens else "sentences")
    ranges = made(examples, split, seq_len).ranges
    stored = splits.examples_of(examples, split, ranges, tmp_path_factory.mktemp("ranges") / "ranges.npy")
    indices = np.arange(len(stored))[::-1]
    ragged = stored.take(indices)
    elsewhere = np.split(ragged.token_labels["elsewhere"], ragged.offsets[1:-1])
    edges = split.sentences[split.documents]
    for labels, (start, stop, *_) in zip(elsewhere, ranges[indices], strict=True):
        begin, end = edges[edges <= start].max(), edges[edges > start].min()
        outside = {*tokens[max(begin, start - reach) : start], *tokens[stop : min(end, stop + reach)]}
        assert labels.tolist() == [-1, *(int(token in outside) for token in tokens[start:stop]), -1]


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
