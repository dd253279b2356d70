"""Base class for pair formats: chunks of consecutive sentences, cut in two, and partners from elsewhere."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.formats import Block, StoredExamples, TextFormat, concatenated, document_runs, walk
from bertjax.data.formats.partners import TRIMS, Chunks, Range, Share, apart, in_another, in_the_same, partners, trimmed
from bertjax.data.framing import Frame, special_tokens
from bertjax.data.random import uniform
from bertjax.data.store import Split, TokenStore, at_random
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

# B's relation to A: it follows A, precedes A, is from another document, or from elsewhere in the same document. ALONE:
# A has no B.
NEXT, PREVIOUS, RANDOM, DISTANT, ALONE = range(5)


@dataclasses.dataclass(frozen=True)
class PairFormat(TextFormat):
    """[CLS] A [SEP] B [SEP] with one label: B's relation to A. Subclasses define chunks and relations.

    Documents are walked chunk by chunk. If B is from elsewhere, the chunk's second run starts the next chunk (as in
    BERT's create_pretraining_data.py). A single-sentence chunk gets a random B if the format has random pairs;
    otherwise it is lost, and counted.

    Attributes:
      trim: how a pair that is too long is cut, always token by token from the longer segment: `random_end` (front or
        back by coin toss, as Devlin et al. 2019) or `outer_ends` (A's front and B's end, so that the text stays
        contiguous).
      relations: relations that occur; a label is an index into them.
    """

    version: ClassVar[int] = 3
    trim: str = setting("random_end", choices=TRIMS)
    shortest: ClassVar[int] = 2 + special_tokens(2)
    orders_sentences: ClassVar[bool] = True
    relations: ClassVar[tuple[int, ...]]
    # How to find a B from elsewhere.
    places: ClassVar[dict[int, Callable[..., Range]]] = {RANDOM: in_another, DISTANT: in_the_same}

    def __post_init__(self):
        super().__post_init__()
        if self.trim == "outer_ends" and PREVIOUS in self.relations:
            raise UserError(
                f"examples.trim='outer_ends' shows which segment came first by its torn end, which is the label of "
                f"examples.kind={self.kind!r}; choose trim='random_end'"
            )

    @property
    def is_of_one_source(self) -> bool:
        return RANDOM in self.relations

    def shares(self) -> dict[int, float]:
        """Return {relation: its share among chunks}; in the remaining chunks B follows A."""
        raise TypeError(f"{type(self).__name__} has no shares()")

    def chunks(self, bounds: np.ndarray, first: np.ndarray, ends: np.ndarray, room: int, share: Share) -> Chunks:
        """Return, for every sentence, the chunk that would start there.

        Args:
          bounds: int64, as `Split.sentences`.
          first: int64 [S], consecutive sentences.
          ends: int64 [S], end of each sentence's document.
          room: tokens for A and B together.
          share: random number generator.
        """
        raise TypeError(f"{type(self).__name__} has no chunks()")

    def blocks(self, split: Split, seq_len: int, seed: int) -> Iterator[Block]:
        """Yield one pass; `ranges` int64 [E, 5]: a_start, a_stop, b_start, b_stop, label.

        Ranges fit `seq_len` and are never empty. A chunk depends only on its first sentence, so the chunks for all
        sentences are computed at once, and only the walk from chunk to chunk is sequential.

        Raises:
          UserError: there is no other document for a random partner, no document has two sentences, or `seq_len` cannot
            hold a pair.
        """
        room, documents, pairs = seq_len - special_tokens(2), len(split.documents) - 1, 0
        if seq_len < self.shortest:
            raise UserError(f"seq_len={seq_len} cannot hold a sentence pair; use at least {self.shortest}")
        if RANDOM in self.relations and documents < 2:
            raise UserError(
                f"sentence pairs need at least two documents and there is {documents}; "
                "add documents, or split a document between sentences that are not consecutive"
            )
        for part, start, stop in document_runs(split):
            block = self._block(part, start, stop, room, seed)
            pairs += len(block.ranges)
            yield block
        if not pairs:
            raise UserError(
                f"examples.kind={self.kind} pairs consecutive sentences, but no document has two; "
                "choose another kind, or a data.splitter that finds the sentences"
            )

    def open(self, store: TokenStore, split: str, ranges: Path) -> "PairExamples":
        (label,) = self.labels
        return PairExamples(store, split, ranges, Vocabulary.of(store.tokenizer), label)

    def _block(self, split: Split, start: int, stop: int, room: int, seed: int) -> Block:
        """Return the pairs that start in documents start..stop-1."""
        share = functools.partial(_share, seed)
        bounds, documents = np.asarray(split.sentences), np.asarray(split.documents)
        # A second map over the same file for random access; the first one is read in order, with read-ahead.
        elsewhere = at_random(copy.copy(split).sentences)
        sizes = np.diff(documents[start : stop + 1])
        owner = np.repeat(np.arange(start, stop), sizes)
        first, begins, ends = np.arange(documents[start], documents[stop]), documents[owner], documents[owner + 1]

        chunks = self.chunks(bounds, first, ends, room, share)
        relation = self._relation(chunks, begins, ends, share("random", first))
        from_elsewhere = np.isin(relation, list(self.places))
        # The next chunk starts after B, or at the second run if that is left for it.
        used = walk(np.where(from_elsewhere, chunks.middle, chunks.stop) - documents[start])
        used = used[relation[used] != ALONE]
        chunks, relation, owner, from_elsewhere = chunks[used], relation[used], owner[used], from_elsewhere[used]

        b_first, b_stop = chunks.middle.copy(), chunks.stop.copy()
        for kind, place in self.places.items():
            here = relation == kind
            b_first[here], b_stop[here] = partners(elsewhere, documents, chunks[here], owner[here], place, share)
        one, two = (bounds[chunks.first], bounds[chunks.middle]), (bounds[b_first], bounds[b_stop])
        # Swap before cutting: if both segments are too long, the one shown first keeps the odd token.
        swapped = relation == PREVIOUS
        a, b = np.where(swapped, two, one), np.where(swapped, one, two)
        a, b = trimmed(a, b, room, self.trim, seed, chunks.first)

        repeated_tokens = int((b[1] - b[0])[from_elsewhere].sum())
        used_tokens = int((a[1] - a[0] + b[1] - b[0]).sum()) - repeated_tokens
        block_tokens = int(bounds[documents[stop]] - bounds[documents[start]])

        labels = np.argmax(relation[:, None] == np.array(self.relations), axis=1)  # index into `relations`
        return Block(np.stack([*a, *b, labels], axis=1), block_tokens - used_tokens, repeated_tokens)

    def _relation(self, chunks: Chunks, begins: np.ndarray, ends: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """Draw B's relation to A for each chunk, from a random number in [0, 1) and its document's bounds."""
        relation, edge = np.full(len(drawn), NEXT), 0.0
        for other, share in self.shares().items():
            relation[(drawn >= edge) & (drawn < edge + share)] = other
            edge += share
        # A short document has no sentence that is far enough away.
        relation[(relation == DISTANT) & (sum(apart(chunks, begins, ends)) == 0)] = NEXT
        lone = RANDOM if RANDOM in self.relations else ALONE
        return np.where(chunks.stop - chunks.first == 1, lone, relation)


@dataclasses.dataclass(frozen=True)
class PairExamples(StoredExamples):
    """`Examples` [CLS] A [SEP] B [SEP] with one label, int32.

    Attributes:
      label: label name.
    """

    label: str

    def label_counts(self, examples: slice = slice(None)) -> np.ndarray:
        """Count examples with label 0, 1, ...; int64."""
        return np.bincount(self._ranges[examples, 4])

    def segments(self, examples: slice = slice(None)) -> np.ndarray:
        """Return every segment's token range: starts and stops, int64 [S, 2]."""
        return self._ranges[examples, :4].reshape(-1, 2)

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


def _share(seed: int, use: str, sentences: np.ndarray) -> np.ndarray:
    return uniform(seed, f"pairs/{use}", 0, sentences, 0)
