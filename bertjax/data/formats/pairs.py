"""What the pair formats share: chunks of consecutive sentences, cut in two, and partners from elsewhere."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.formats.base import Block, TextFormat, document_runs, walk
from bertjax.data.formats.stored import StoredExamples, concatenated
from bertjax.data.formats.trimming import TRIMS, Range, trimmed
from bertjax.data.framing import Frame, special_tokens
from bertjax.data.random import uniform
from bertjax.data.store import Split, TokenStore
from bertjax.errors import UserError

# How B relates to A: follows it, precedes it, comes from another document, or from elsewhere in the same one; or there
# is nothing to pair A with.
NEXT, PREVIOUS, RANDOM, DISTANT, ALONE = range(5)

# (name of a use, int64 [S] sentences) -> float64 [S] in [0, 1), the same for the same sentence of a store and seed.
Share = Callable[[str, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Chunks:
    """The chunk that begins with each of S consecutive sentences: two runs, first..middle-1 and middle..stop-1.

    Attributes:
      first, middle, stop: int64 [S], sentences; middle = stop where the chunk is a single sentence.
      target: int64 [S], tokens that the pair aims at where the second run is replaced by one from elsewhere.
    """

    first: np.ndarray
    middle: np.ndarray
    stop: np.ndarray
    target: np.ndarray

    def __getitem__(self, met: np.ndarray) -> "Chunks":
        return Chunks(self.first[met], self.middle[met], self.stop[met], self.target[met])


@dataclasses.dataclass(frozen=True)
class PairFormat(TextFormat):
    """[CLS] A [SEP] B [SEP] with one label: how B relates to A. A subclass says what chunks and relations there are.

    Documents are walked from chunk to chunk. Where B is from elsewhere, the chunk's second run is left for the next
    chunk. A chunk of a single sentence takes a random B where the format knows such, and is lost (and counted)
    otherwise.

    Attributes:
      trim: what goes when a pair is too long, always from the longer segment: `random_end` (a token at its front or
        its back, by a coin, as Devlin et al. 2019) or `outer_ends` (the first run's front and the second run's end,
        so that what adjoins in the text still does).
      relations: those that occur; a label is an index into them.
    """

    trim: str = "random_end"
    relations: ClassVar[tuple[int, ...]]

    def __post_init__(self):
        if self.trim not in TRIMS:
            raise UserError(f"examples.trim={self.trim!r} is unknown; choose one of {', '.join(TRIMS)}")

    def shares(self) -> dict[int, float]:
        """{relation: its share of the chunks}; B follows A in the others."""
        raise TypeError(f"{type(self).__name__} has no shares()")

    def chunks(self, bounds: np.ndarray, first: np.ndarray, ends: np.ndarray, room: int, share: Share) -> Chunks:
        """The chunk that each sentence would begin.

        Args:
          bounds: int64, as `Split.sentences`.
          first: int64 [S], consecutive sentences.
          ends: int64 [S], where the document of each ends.
          room: tokens for A and B together.
          share: gives what is drawn.
        """
        raise TypeError(f"{type(self).__name__} has no chunks()")

    def blocks(self, split: Split, seq_len: int, seed: int) -> Iterator[Block]:
        """The pairs of one pass; `ranges` int64 [E, 5]: a_start, a_stop, b_start, b_stop, label.

        The ranges fit `seq_len` and are never empty. What a chunk is depends on nothing but the sentence it begins
        with, hence it is computed for every sentence at once, and only the walk from chunk to chunk is sequential.

        Raises:
          UserError: no document to take a random partner from, no sentence with another one beside it, or a `seq_len`
            that cannot hold a pair.
        """
        room, documents, pairs = seq_len - special_tokens(2), len(split.documents) - 1, 0
        if room < 2:
            raise UserError(f"seq_len={seq_len} cannot hold a sentence pair; use at least {2 + special_tokens(2)}")
        if RANDOM in self.relations and documents < 2:
            raise UserError(
                f"sentence pairs need at least two documents and there is {documents}; "
                "add documents or split them where their sentences stop being consecutive"
            )
        for part, start, stop in document_runs(split):
            block = self._block(part, start, stop, room, seed)
            pairs += len(block.ranges)
            yield block
        if not pairs:
            raise UserError(
                f"examples.kind={self.kind} pairs consecutive sentences and no document has two; "
                "choose another kind, or see that data.splitter finds the sentences"
            )

    def open(self, store: TokenStore, split: str, ranges: Path) -> "PairExamples":
        (label,) = self.labels
        return PairExamples(store, split, ranges, Vocabulary.of(store.tokenizer), label)

    def _block(self, split: Split, start: int, stop: int, room: int, seed: int) -> Block:
        """The pairs whose first sentences lie in documents start..stop-1."""
        share = functools.partial(_share, seed)
        bounds, documents = np.asarray(split.sentences), np.asarray(split.documents)
        sizes = np.diff(documents[start : stop + 1])
        owner = np.repeat(np.arange(start, stop), sizes)
        first, begins, ends = np.arange(documents[start], documents[stop]), documents[owner], documents[owner + 1]

        chunks = self.chunks(bounds, first, ends, room, share)
        relation = self._relation(chunks, begins, ends, share("random", first))
        from_elsewhere = np.isin(relation, list(_PLACES))
        met = walk(np.where(from_elsewhere, chunks.middle, chunks.stop) - documents[start])
        met = met[relation[met] != ALONE]
        chunks, relation, owner, from_elsewhere = chunks[met], relation[met], owner[met], from_elsewhere[met]

        b_first, b_stop = chunks.middle.copy(), chunks.stop.copy()
        for kind, places in _PLACES.items():
            here = relation == kind
            b_first[here], b_stop[here] = _partners(bounds, documents, chunks[here], owner[here], places, share)
        one, two = (bounds[chunks.first], bounds[chunks.middle]), (bounds[b_first], bounds[b_stop])
        one, two = trimmed(one, two, room, self.trim, seed, chunks.first)

        repeated = int((two[1] - two[0])[from_elsewhere].sum())
        used = int((one[1] - one[0] + two[1] - two[0]).sum()) - repeated
        walked = int(bounds[documents[stop]] - bounds[documents[start]])

        labels = np.argmax(relation[:, None] == np.array(self.relations), axis=1)
        ranges = np.stack([*one, *two, labels], axis=1)
        swapped = relation == PREVIOUS
        ranges[swapped] = ranges[swapped][:, [2, 3, 0, 1, 4]]
        return Block(ranges, walked - used, repeated)

    def _relation(self, chunks: Chunks, begins: np.ndarray, ends: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """How B relates to A in each chunk of a document that begins and ends there, by a number drawn in [0, 1)."""
        relation, edge = np.full(len(drawn), NEXT), 0.0
        for other, share in self.shares().items():
            relation[(drawn >= edge) & (drawn < edge + share)] = other
            edge += share
        relation[(relation == DISTANT) & (sum(_apart(chunks, begins, ends)) == 0)] = NEXT
        lone = RANDOM if RANDOM in self.relations else ALONE
        return np.where(chunks.stop - chunks.first == 1, lone, relation)


@dataclasses.dataclass(frozen=True)
class PairExamples(StoredExamples):
    """`Examples` [CLS] A [SEP] B [SEP] with one label, int32.

    Attributes:
      label: its name.
    """

    label: str

    def label_counts(self) -> np.ndarray:
        """How many examples have the label 0, 1, ...; int64."""
        return np.bincount(self._ranges[:, 4])

    def _lengths_of(self, ranges: np.ndarray) -> np.ndarray:
        a_start, a_stop, b_start, b_stop, _ = ranges.T
        return a_stop - a_start + b_stop - b_start + special_tokens(2)

    def take(self, indices: np.ndarray) -> Ragged:
        ranges = self._ranges[indices]
        starts, stops = ranges[:, :4].reshape(-1, 2).T
        frame = Frame.of(stops - starts, np.full(len(ranges), 2))
        return self._assemble(
            indices,
            frame,
            sources=concatenated(starts, stops),
            segments=np.repeat(np.tile(np.array([0, 1], np.int32), len(ranges)), frame.part_lengths),
            labels={self.label: ranges[:, 4].astype(np.int32)},
        )


def below(share: np.ndarray, size: int | np.ndarray) -> np.ndarray:
    """A number in [0, 1) as an integer in range(size)."""
    return (share * size).astype(np.int64)


def _share(seed: int, use: str, sentences: np.ndarray) -> np.ndarray:
    return uniform(seed, f"pairs/{use}", 0, sentences, 0)


def _apart(chunks: Chunks, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many sentences of its document lie before and after a chunk's first run, without those that adjoin it."""
    return np.maximum(chunks.first - 1 - begins, 0), np.maximum(ends - chunks.middle - 1, 0)


def _in_another(documents: np.ndarray, chunks: Chunks, owner: np.ndarray, share: Share) -> Range:
    """For each chunk a sentence of any document but its own, and where that document ends; int64 [C]."""
    other = below(share("document", chunks.first), len(documents) - 2)
    other += other >= owner
    begins, ends = documents[other], documents[other + 1]
    return begins + below(share("start", chunks.first), ends - begins), ends


def _in_the_same(documents: np.ndarray, chunks: Chunks, owner: np.ndarray, share: Share) -> Range:
    """For each chunk a sentence of its document that does not adjoin its first run, and how far it may go on; [C]."""
    begins, ends = documents[owner], documents[owner + 1]
    before, after = _apart(chunks, begins, ends)
    drawn = below(share("start", chunks.first), before + after)
    is_before = drawn < before
    first = np.where(is_before, begins + drawn, chunks.middle + 1 + drawn - before)
    return first, np.where(is_before, chunks.first - 1, ends)


# Where a B from elsewhere is.
_PLACES = {RANDOM: _in_another, DISTANT: _in_the_same}


def _partners(bounds, documents, chunks: Chunks, owner: np.ndarray, places, share: Share) -> Range:
    """For each chunk a run of sentences from elsewhere, as long as the target leaves room for.

    Args:
      bounds, documents: int64, as `Split.sentences` and `Split.documents`.
      chunks: C of them.
      owner: int64 [C], the document of each.
      places: one of `_PLACES`.
      share: gives what is drawn.

    Returns:
      First sentences and stops, int64 [C].
    """
    first, last = places(documents, chunks, owner, share)
    wanted = np.maximum(chunks.target - (bounds[chunks.middle] - bounds[chunks.first]), 1)
    return first, _reach(bounds, first, np.minimum(first + wanted, last), wanted)


def _reach(bounds: np.ndarray, first: np.ndarray, last: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The first sentence after `first` that begins `wanted` tokens later or more, or `last`: bisection in between.

    A search through all bounds would read pages of the map from everywhere.
    """
    low, high, reached = first + 1, last, bounds[first] + wanted
    while (low < high).any():
        middle = (low + high) // 2
        is_before = (low < high) & (bounds[middle] < reached)
        low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, middle)
    return low
