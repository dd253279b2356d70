"""Runs of text that fill rows, each token in exactly one example: full sentences and doc sentences.

(Liu et al. 2019, RoBERTa, arXiv 1907.11692, section 4.2.) ERNIE 2.0's token-document relation and sentence reordering
are made of doc sentences.
"""

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.formats import Block, StoredExamples, TextFormat, concatenated, document_runs, walk
from bertjax.data.formats.pairs import below
from bertjax.data.framing import Frame, special_tokens
from bertjax.data.random import uniform
from bertjax.data.store import Split, TokenStore, at_random
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

# Consecutive examples, int64 [E] each: start, stop, number of separators, and index of the document of the first token
# among those of the split.
Runs = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class RunFormat(TextFormat):
    """[CLS] text [SEP]: as many consecutive sentences as fit. Subclasses define whether they may cross documents.

    Attributes:
      cut: where an example ends. `tokens`: when the row is full; the next example continues there. `sentences`: after
        the last sentence that fits whole (as Liu et al. 2019), which pads rows unless they are packed. A sentence
        longer than a row is cut either way.
      across: whether an example continues with the next document, after a [SEP].
    """

    version: ClassVar[int] = 3
    is_random: ClassVar[bool] = False
    cut: str = setting("tokens", choices=("tokens", "sentences"))
    across: ClassVar[bool]

    def blocks(self, split: Split, seq_len: int, seed: int) -> Iterator[Block]:
        """Yield one pass; `ranges` int64 [E, 4]: start, stop, the number of [SEP] between documents, and a place.

        The place of a single separator is its token, the end of the first document. Otherwise it is the index of the
        document in which the example starts. So a cold row costs no search through the offsets of a split, which would
        read 20 pages from disk: most rows have one separator at most, and need no offset at all. Not random.

        Raises:
          UserError: `seq_len` cannot hold a token.
        """
        room = seq_len - special_tokens(1)
        if seq_len < self.shortest:
            raise UserError(f"seq_len={seq_len} cannot hold a sentence; use at least {self.shortest}")
        make = self._at_sentences if self.cut == "sentences" else self._at_tokens
        documents, origin = np.asarray(split.documents), split.range[0] if split.range else 0
        for starts, stops, separators, document in make(split, room):
            # A copy of the split has maps of its own, so that the pages read for one block are freed before the next.
            first_end = np.asarray(copy.copy(split).sentences)[documents[document + 1]]
            place = np.where(separators == 1, first_end, origin + document)
            ranges = np.stack([starts, stops, separators, place], axis=1)
            yield Block(ranges, lost_tokens=0, repeated_tokens=0)

    def open(self, store: TokenStore, split: str, ranges: Path) -> "RunExamples":
        return RunExamples(store, split, ranges, Vocabulary.of(store.tokenizer))

    def _at_tokens(self, split: Split, room: int) -> Iterator[Runs]:
        """Yield examples that end when the row is full."""
        raise TypeError(f"{type(self).__name__} has no _at_tokens()")

    def _at_sentences(self, split: Split, room: int) -> Iterator[Runs]:
        """Yield examples that end after whole sentences; each has as many as fit.

        A separator counts as the last token in the document before it. If an example may continue in the next block, it
        is left to that block.
        """
        begin = split.sentences[split.documents[0]]
        for part, _, stop in document_runs(split):
            bounds, documents = np.asarray(part.sentences), np.asarray(part.documents)
            sentences = np.arange(np.searchsorted(bounds, begin, side="right") - 1, documents[stop])
            # A sentence longer than a row becomes several pieces, and each piece is treated as a sentence.
            starts, stops, which = pieces(bounds[sentences], bounds[sentences + 1], room)
            document = np.searchsorted(documents, sentences, side="right")[which]
            separators = document if self.across else 0
            # For each piece, the first one that no longer fits into an example starting with it.
            following = np.searchsorted(stops + separators, starts + separators + room, side="right")
            if not self.across:
                following = np.minimum(following, np.searchsorted(document, document, side="right"))
            first = walk(following, int(np.searchsorted(starts, begin)))
            if self.across and stop < len(documents) - 1:
                first, begin = first[:-1], starts[first[-1]]
            else:
                begin = bounds[documents[stop]]
            last = following[first] - 1
            yield starts[first], stops[last], document[last] - document[first], document[first] - 1


@dataclasses.dataclass(frozen=True)
class RunExamples(StoredExamples):
    """`Examples` [CLS] text [SEP], with a [SEP] between documents; segment 0 throughout, no labels."""

    @functools.cached_property
    def _offsets(self) -> tuple[np.ndarray, np.ndarray]:
        return at_random(self._source.sentences), at_random(self._source.documents)

    def _lengths_of(self, ranges: np.ndarray) -> np.ndarray:
        start, stop, separators, _ = ranges.T
        return stop - start + special_tokens(1 + separators)

    def take(self, indices: np.ndarray) -> Ragged:
        ranges = self._ranges[indices]
        start, stop, separators, _ = ranges.T
        frame = Frame.of(self._part_lengths(ranges), 1 + separators)
        return self._assemble(
            indices, frame, sources=concatenated(start, stop), segments=np.zeros(frame.offsets[-1], np.int32), labels={}
        )

    def _part_lengths(self, ranges: np.ndarray) -> np.ndarray:
        """Return how many tokens each example takes from each document; int64 [P]."""
        start, stop, separators, _ = ranges.T
        # An example with s separators has s + 1 parts; the inner ones end where their documents end.
        last = np.cumsum(1 + separators) - 1
        is_last = np.zeros(last[-1] + 1 if len(last) else 0, bool)
        is_last[last] = True
        stops = np.empty(len(is_last), np.int64)
        stops[is_last], stops[~is_last] = stop, self._document_ends(ranges[separators > 0])
        starts = np.roll(stops, 1)
        starts[last - separators] = start
        return stops - starts

    def _document_ends(self, ranges: np.ndarray) -> np.ndarray:
        """Return where documents end inside ranges of tokens, one range after the other; int64."""
        _, _, count, place = ranges.T
        bounds, documents = self._offsets
        ends, has_many = np.repeat(place, count), count > 1
        following = place[has_many] + 1
        ends[np.repeat(has_many, count)] = bounds[documents[concatenated(following, following + count[has_many])]]
        return ends


def document_edges(split: Split, start: int, stop: int) -> np.ndarray:
    """Return where documents start..stop-1 begin, and where the last one ends; int64 [stop - start + 1]."""
    return np.asarray(split.sentences)[split.documents[start : stop + 1]]


def pieces(starts: np.ndarray, stops: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut each range into pieces with `room` tokens; a range's last piece may be shorter.

    Returns:
      Starts, stops and range index for each of P pieces; int64 [P].
    """
    counts = -(-(stops - starts) // room)
    which = np.repeat(np.arange(len(starts)), counts)
    begin = starts[which] + room * concatenated(np.zeros_like(counts), counts)
    return begin, np.minimum(begin + room, stops[which]), which


@dataclasses.dataclass(frozen=True)
class DocSentences(RunFormat):
    """[CLS] text [SEP] from one document; its last example may be short. No token is lost or repeated."""

    kind: str = dataclasses.field(init=False, default="doc_sentences")
    across: ClassVar[bool] = False

    def _at_tokens(self, split: Split, room: int) -> Iterator[Runs]:
        for part, start, stop in document_runs(split):
            edges = document_edges(part, start, stop)
            begin, end, document = pieces(edges[:-1], edges[1:], room)
            yield begin, end, np.zeros_like(begin), start + document


@dataclasses.dataclass(frozen=True)
class FullSentences(RunFormat):
    """[CLS] text [SEP] text ... [SEP], with a [SEP] between documents. No token is lost or repeated."""

    kind: str = dataclasses.field(init=False, default="full_sentences")
    across: ClassVar[bool] = True

    def _at_tokens(self, split: Split, room: int) -> Iterator[Runs]:
        """Concatenate all documents, with a separator after each, and cut every `room` positions.

        A separator next to a cut is dropped, because the example already has [CLS] or [SEP] there. Such an example is
        one token short, so every cut stays at a multiple of `room` whatever precedes it.
        """
        origin = split.sentences[split.documents[0]]
        begin, begin_document = origin, 0
        for part, start, stop in document_runs(split):
            edges = document_edges(part, start, stop)
            # Position of each document edge in the concatenation: one separator per document before it.
            stream = edges - origin + np.arange(start, stop + 1)
            is_last = stop == len(part.documents) - 1
            end = stream[-1] - is_last
            cuts = np.arange(-(-max(stream[0], 1) // room) * room, end, room)
            if is_last:
                cuts = np.append(cuts, end)

            owner = np.searchsorted(stream, cuts, side="right") - 1
            token = origin + cuts - (start + owner)
            # At a document's edge the separator is dropped: the cut belongs to the next document for the example that
            # starts there, and to the document before for the one that ends there.
            next_document = start + owner + (token == edges[owner + 1])
            last_document = start + owner - (token == edges[owner])

            begins = np.concatenate([[begin], token])
            begin_documents = np.concatenate([[begin_document], next_document])
            begin, begin_document = begins[-1], begin_documents[-1]
            is_filled = token > begins[:-1]
            separators = last_document - begin_documents[:-1]
            yield tuple(each[is_filled] for each in (begins[:-1], token, separators, begin_documents[:-1]))


@dataclasses.dataclass(frozen=True)
class TokenDocument(DocSentences):
    """[CLS] text [SEP] from one document. Token label `elsewhere`: 1 if the document has the token again outside the
    text, 0 if not, -1 for special tokens.

    (Sun et al. 2020, ERNIE 2.0, arXiv 1907.12412, "Word-aware Pre-training Tasks".)

    Attributes:
      reach: how far to search before and after the text, in tokens. Searching a whole book would take longer than a
        training step.
    """

    kind: str = dataclasses.field(init=False, default="token_document")
    reach: int = setting(1024, least=1)
    labels: ClassVar[tuple[str, ...]] = ("elsewhere",)

    def open(self, store: TokenStore, split: str, ranges: Path) -> "TokenDocumentExamples":
        return TokenDocumentExamples(store, split, ranges, Vocabulary.of(store.tokenizer), self.reach)


@dataclasses.dataclass(frozen=True)
class TokenDocumentExamples(RunExamples):
    """`Examples` [CLS] text [SEP] from one document with the token label `elsewhere`, int32.

    Attributes:
      reach: as in `TokenDocument`.
    """

    reach: int

    def take(self, indices: np.ndarray) -> Ragged:
        ragged = super().take(indices)
        start, stop, _, document = self._ranges[indices].T
        bounds, documents = self._offsets
        before = np.maximum(start - self.reach, bounds[documents[document]])
        after = np.minimum(stop + self.reach, bounds[documents[document + 1]])

        # Encode (example, token) as one number, so that one `isin` serves all examples.
        lengths, example = (start - before) + (after - stop), np.arange(len(indices))
        outside = np.stack([before, start, stop, after], axis=1).reshape(-1, 2)
        context = self._tokens[concatenated(outside[:, 0], outside[:, 1])]
        size = self.vocabulary.size
        again = np.isin(
            ragged.tokens + size * ragged.token_examples, np.unique(context + size * np.repeat(example, lengths))
        )
        elsewhere = np.where(ragged.special, -1, again).astype(np.int32)
        return dataclasses.replace(ragged, token_labels={"elsewhere": elsewhere})


MOST_SEGMENTS = 3
# All permutations of one, two and three segments; a label is an index into this list.
ORDERS = [order for count in range(1, MOST_SEGMENTS + 1) for order in itertools.permutations(range(count))]
_PADDED_ORDERS = np.array([(*order, *range(len(order), MOST_SEGMENTS)) for order in ORDERS])


@dataclasses.dataclass(frozen=True)
class SentenceReordering(TextFormat):
    """[CLS] segment [SEP] segment [SEP] segment [SEP], with the segments in random order.

    As many whole sentences from one document as fit are cut into one, two or three segments with equal probability
    (fewer if there are fewer sentences). Label `permutation`: index into the 1! + 2! + 3! = 9 orders, 0 if nothing was
    cut. No token is lost or repeated.

    (Sun et al. 2020, ERNIE 2.0, arXiv 1907.12412, "Structure-aware Pre-training Tasks".)
    """

    kind: str = dataclasses.field(init=False, default="sentence_reordering")
    labels: ClassVar[tuple[str, ...]] = ("permutation",)
    shortest: ClassVar[int] = 1 + special_tokens(MOST_SEGMENTS)
    orders_sentences: ClassVar[bool] = True

    def blocks(self, split: Split, seq_len: int, seed: int) -> Iterator[Block]:
        """Yield one pass; `ranges` int64 [E, 7]: each segment's start and stop in the example's order, and the label.

        Raises:
          UserError: `seq_len` cannot hold a token.
        """
        room = seq_len - special_tokens(MOST_SEGMENTS)
        if seq_len < self.shortest:
            raise UserError(f"seq_len={seq_len} cannot hold three segments; use at least {self.shortest}")
        for block in DocSentences(cut="sentences").blocks(split, room + special_tokens(1), seed):
            start, stop, *_ = block.ranges.T
            # A copy has its own memory maps, so that the pages read for a block are freed after it.
            yield Block(_permuted(np.asarray(copy.copy(split).sentences), start, stop, seed), 0, 0)

    def open(self, store: TokenStore, split: str, ranges: Path) -> "ReorderedExamples":
        return ReorderedExamples(store, split, ranges, Vocabulary.of(store.tokenizer))


def _permuted(bounds: np.ndarray, start: np.ndarray, stop: np.ndarray, seed: int) -> np.ndarray:
    """Cut each range at sentence boundaries and permute the segments; see `SentenceReordering.blocks`."""

    def drawn(use: str, size: int | np.ndarray) -> np.ndarray:
        return below(uniform(seed, f"reordering/{use}", 0, start, 0), size)

    first = np.searchsorted(bounds, start, side="right")  # the first bound inside
    inner = np.searchsorted(bounds, stop) - first
    count = 1 + drawn("segments", np.minimum(inner, MOST_SEGMENTS - 1) + 1)

    one, other = drawn("cut", np.maximum(inner, 1)), drawn("second cut", np.maximum(inner - 1, 1))
    other += other >= one
    # Unused cuts go to the end of the range: the segments after them are empty, and shapes stay fixed.
    places = [np.where(count > 1, first + one, -1), np.where(count > 2, first + other, -1)]
    cuts = np.sort([np.where(place >= 0, bounds[place], stop) for place in places], axis=0)
    edges = np.stack([start, *cuts, stop], axis=1)
    segments = np.stack([edges[:, :-1], edges[:, 1:]], axis=2)

    # Labels: 0 for one segment, 1 and 2 for the orders of two, 3 to 8 for those of three.
    orders = np.array([0, *(math.factorial(count) for count in range(1, MOST_SEGMENTS + 1))])
    label = np.cumsum(orders)[count - 1] + drawn("order", orders[count])
    permuted = np.take_along_axis(segments, _PADDED_ORDERS[label][:, :, None], axis=1)
    return np.concatenate([permuted.reshape(-1, 2 * MOST_SEGMENTS), label[:, None]], axis=1)


@dataclasses.dataclass(frozen=True)
class ReorderedExamples(StoredExamples):
    """`Examples` with one to three segments, a [SEP] after each; segment id 0. Label `permutation`, int32."""

    def label_counts(self, examples: slice = slice(None)) -> np.ndarray:
        """Count examples with label 0, 1, ...; int64."""
        return np.bincount(self._ranges[examples, -1])

    def _lengths_of(self, ranges: np.ndarray) -> np.ndarray:
        lengths = ranges[:, 1:-1:2] - ranges[:, :-1:2]
        return lengths.sum(axis=1) + special_tokens(np.count_nonzero(lengths, axis=1))

    def take(self, indices: np.ndarray) -> Ragged:
        ranges = self._ranges[indices]
        starts, stops = ranges[:, :-1:2], ranges[:, 1:-1:2]
        is_segment = stops > starts
        starts, stops = starts[is_segment], stops[is_segment]
        frame = Frame.of(stops - starts, np.count_nonzero(is_segment, axis=1))
        return self._assemble(
            indices,
            frame,
            sources=concatenated(starts, stops),
            segments=np.zeros(frame.offsets[-1], np.int32),
            labels={"permutation": ranges[:, -1].astype(np.int32)},
        )
