"""Examples of consecutive text: every token once per epoch, full rows, and sentence bounds."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.examples import Vocabulary
from bertjax.data.formats.runs import DocSentences, FullSentences
from bertjax.data.formats.token_document import TokenDocument
from tests.data.formats import splits
from tests.data.formats.splits import CLS, FIRST_TOKEN, SEP, made, split_of

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


def test_rows_are_full():
    split = splits.large()
    full, doc = (
        made(examples_class(), split, 128).ranges[:, :3] @ [-1, 1, 1] + 2
        for examples_class in (FullSentences, DocSentences)
    )
    assert np.isin(full[:-1], [127, 128]).all() and np.mean(full == 128) > 0.98
    assert np.sum(doc < 128) <= len(split.documents) - 1


def test_whole_sentences_stay_whole():
    split = splits.large()
    for examples_class in (FullSentences, DocSentences):
        ranges = made(examples_class(cut="sentences"), split, 300).ranges
        assert np.diff(split.sentences).max() <= 298
        assert np.isin(ranges[:, :2], split.sentences).all()


@every_format
def test_every_token_of_a_store_is_in_one_example(examples, store, tmp_path):
    np.save(tmp_path / "ranges.npy", made(examples, store.split("train"), 48).ranges)
    stored = examples.open(store, "train", tmp_path / "ranges.npy")
    vocabulary = Vocabulary.of(store.tokenizer)
    ragged = stored.take(np.arange(len(stored)))
    delimiter = np.isin(ragged.tokens, [vocabulary.cls_id, vocabulary.sep_id])
    np.testing.assert_array_equal(ragged.tokens[~delimiter], store.split("train").tokens)
    np.testing.assert_array_equal(ragged.special, np.isin(ragged.tokens, vocabulary.special_ids))
    assert ragged.labels == {} and not ragged.segments.any()

    some = np.random.default_rng(0).permutation(len(stored))[:20]
    copied = pickle.loads(pickle.dumps(stored)).take(some)
    np.testing.assert_array_equal(copied.ids, some)
    for m, index in enumerate(some):
        one = slice(ragged.offsets[index], ragged.offsets[index + 1])
        np.testing.assert_array_equal(copied.tokens[copied.offsets[m] : copied.offsets[m + 1]], ragged.tokens[one])
    assert stored.take(np.array([], np.int64)).offsets.tolist() == [0]


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
