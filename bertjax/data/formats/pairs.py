"""Pair formats: chunks of consecutive sentences, cut in two, and partners from elsewhere.

A pair is trimmed to a row token by token, always from the longer segment.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.formats import Block, StoredExamples, TextFormat, concatenated, document_runs, walk
from bertjax.data.framing import Frame, kept_of_pair, special_tokens
from bertjax.data.random import bits, uniform
from bertjax.data.store import Split, TokenStore, at_random
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

TRIMS = ("random_end", "outer_ends")

# 32-bit random words drawn at a time; each takes about a hundred bytes.
WORDS_AT_ONCE = 1 << 20

Range = tuple[np.ndarray, np.ndarray] | np.ndarray


def trimmed(a: Range, b: Range, room: int, trim: str, seed: int, keys: np.ndarray) -> tuple[Range, Range]:
    """Cut A and B so that together they have at most `room` tokens and neither is empty.

    Args:
      a, b: starts and stops, int64 [M] each.
      room: tokens for A and B, at least 2.
      trim: `random_end` tosses a coin for every token to remove, front or back (as in Devlin et al.'s 2019 code);
        `outer_ends` removes A's front and B's end.
      seed: seed for the coins.
      keys: int64 [M], one random key per pair.
    """
    a_length, b_length = a[1] - a[0], b[1] - b[0]
    a_kept, b_kept = kept_of_pair(a_length, b_length, room)
    a_cut, b_cut = a_length - a_kept, b_length - b_kept
    a_front, b_front = a_cut, np.zeros_like(b_cut)
    if trim == "random_end":
        a_front, b_front = _heads(seed, "pairs/trim_a", keys, a_cut), _heads(seed, "pairs/trim_b", keys, b_cut)
    return (a[0] + a_front, a[1] - (a_cut - a_front)), (b[0] + b_front, b[1] - (b_cut - b_front))


def _heads(seed: int, stream: str, keys: np.ndarray, tosses: np.ndarray) -> np.ndarray:
    """Count heads among `tosses` fair coins per pair, 32 coins per random word.

    Random words are numbered across all pairs, so time is linear in the total tosses. Padding every pair to the longest
    would let a single 1 MB line (a log, a table) slow down all others.
    """
    heads, words = np.zeros_like(tosses), -(-tosses // 32)
    ends = np.cumsum(words)
    for start in range(0, int(words.sum()), WORDS_AT_ONCE):
        numbers = np.arange(start, min(start + WORDS_AT_ONCE, ends[-1]))
        pair = np.searchsorted(ends, numbers, side="right")
        word = numbers - (ends - words)[pair]
        left = np.minimum(tosses[pair] - 32 * word, 32).astype(np.uint64)  # coins used of this word's 32
        coins = bits(seed, stream, 0, keys[pair], word) & ((np.uint64(1) << left) - np.uint64(1))
        heads += np.bincount(pair, np.bitwise_count(coins), len(heads)).astype(heads.dtype)
    return heads


# (stream name, int64 [S] sentences) -> float64 [S] in [0, 1), a function of stream, sentence and seed.
Share = Callable[[str, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Chunks:
    """S chunks, one per starting sentence, each with two runs: first..middle-1 and middle..stop-1.

    Attributes:
      first, middle, stop: int64 [S], sentences; middle = stop for a single-sentence chunk.
      partner_tokens: int64 [S], minimum tokens, at least 1, for a run from elsewhere that replaces the second run.
    """

    first: np.ndarray
    middle: np.ndarray
    stop: np.ndarray
    partner_tokens: np.ndarray

    def __getitem__(self, indices: np.ndarray) -> "Chunks":
        return Chunks(self.first[indices], self.middle[indices], self.stop[indices], self.partner_tokens[indices])


def below(share: np.ndarray, size: int | np.ndarray) -> np.ndarray:
    """Map random numbers in [0, 1) to integers in range(size)."""
    return (share * size).astype(np.int64)


def apart(chunks: Chunks, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the sentences in a chunk's document before and after its first run, without the adjacent ones."""
    return np.maximum(chunks.first - 1 - begins, 0), np.maximum(ends - chunks.middle - 1, 0)


def in_another(bounds: np.ndarray, documents: np.ndarray, chunks: Chunks, owner: np.ndarray, share: Share) -> Range:
    """Draw a sentence from another document for each chunk; also return that document's end; int64 [C]."""
    begins, ends = _another(documents, chunks, owner, share)
    return begins + below(share("start", chunks.first), ends - begins), ends


def in_another_with_room(
    bounds: np.ndarray, documents: np.ndarray, chunks: Chunks, owner: np.ndarray, share: Share
) -> Range:
    """Like `in_another`, but leave `partner_tokens` after the sentence if the document has that many; int64 [C]."""
    begins, ends = _another(documents, chunks, owner, share)
    too_late = _reach(bounds, begins, ends, bounds[ends] - bounds[begins] - chunks.partner_tokens + 1)
    return begins + below(share("start", chunks.first), too_late - begins), ends


def _another(documents: np.ndarray, chunks: Chunks, owner: np.ndarray, share: Share) -> Range:
    """Draw another document for each chunk; return its first sentence and its end; int64 [C]."""
    other = below(share("document", chunks.first), len(documents) - 2)
    other += other >= owner  # skip the chunk's own document: uniform without rejection
    return documents[other], documents[other + 1]


def in_the_same(bounds: np.ndarray, documents: np.ndarray, chunks: Chunks, owner: np.ndarray, share: Share) -> Range:
    """Draw a sentence in the same document, not adjacent to the first run; also return where a run must end; [C]."""
    begins, ends = documents[owner], documents[owner + 1]
    before, after = apart(chunks, begins, ends)
    # One draw over the sentences before and after, as if they were adjacent.
    drawn = below(share("start", chunks.first), before + after)
    is_before = drawn < before
    first = np.where(is_before, begins + drawn, chunks.middle + 1 + drawn - before)
    return first, np.where(is_before, chunks.first - 1, ends)


def partners(bounds, documents, chunks: Chunks, owner: np.ndarray, place, share: Share) -> Range:
    """Return a run of sentences from elsewhere for each chunk, with `partner_tokens` or more where possible.

    Args:
      bounds, documents: int64, as `Split.sentences` and `Split.documents`.
      chunks: C chunks.
      owner: int64 [C], each chunk's document.
      place: one of `PairFormat.places`; returns a first sentence for each chunk, and where a run must end.
      share: random number generator.

    Returns:
      First sentences and stops, int64 [C].
    """
    first, last = place(bounds, documents, chunks, owner, share)
    tokens = chunks.partner_tokens
    return first, _reach(bounds, first, np.minimum(first + tokens, last), tokens)


def _reach(bounds: np.ndarray, first: np.ndarray, last: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Find, by bisection, the first sentence after `first` that starts at least `tokens` later, at most `last`.

    `np.searchsorted` over all bounds would touch pages all over the memory map.
    """
    low, high, reached = first + 1, last, bounds[first] + tokens
    while (low < high).any():
        middle = (low + high) // 2
        is_before = (low < high) & (bounds[middle] < reached)
        low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, middle)
    return low


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
            label = f"the label of examples.kind={self.kind!r}"
            raise UserError(f"examples.trim='outer_ends' shows {label} by the torn end; choose trim='random_end'")

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
            raise UserError(f"sentence pairs need at least two documents and there is {documents}; add documents")
        for part, start, stop in document_runs(split):
            block = self._block(part, start, stop, room, seed)
            pairs += len(block.ranges)
            yield block
        if not pairs:
            remedy = "choose another kind, or a data.splitter that finds the sentences"
            raise UserError(f"examples.kind={self.kind} pairs sentences, but no document has two; {remedy}")

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


@dataclasses.dataclass(frozen=True)
class SegmentFormat(PairFormat):
    """Segment pairs; each segment is one sentence or more.

    Attributes:
      short_seq_prob: share of pairs with a random shorter target length, because fine-tuning inputs are often short.
      fewest: minimum sentences per chunk, if the document has that many left.
    """

    short_seq_prob: float = setting(0.1, least=0, most=1)
    fewest: ClassVar[int] = 2

    def target(self, first: np.ndarray, room: int, share: Share) -> np.ndarray:
        """Draw the target pair length for a chunk starting at each sentence; int64 [S], 2 to `room`."""
        is_short = share("short", first) < self.short_seq_prob
        # At least 2, one token for each segment.
        return np.where(is_short, 2 + below(share("length", first), room - 1), room)

    def chunks(self, bounds: np.ndarray, first: np.ndarray, ends: np.ndarray, room: int, share: Share) -> Chunks:
        """Cut each chunk at a sentence boundary, uniformly at random (Devlin et al. 2019)."""
        target = self.target(first, room, share)
        # The chunk ends with the sentence that reaches the target; what exceeds the row is trimmed later.
        stop = np.maximum(np.searchsorted(bounds, bounds[first] + target), first + self.fewest)
        stop = np.minimum(stop, ends)
        middle = first + 1 + below(share("split", first), stop - first - 1)
        return Chunks(first, middle, stop, np.maximum(target - (bounds[middle] - bounds[first]), 1))


@dataclasses.dataclass(frozen=True)
class OrderFormat(SegmentFormat):
    """Segment pairs labeled by order: segment lengths must not reveal which one came first.

    In `SegmentFormat` a chunk ends with the sentence that reaches the target. That sentence is longer than average
    (length-biased sampling), and it is always in the second run. Here both runs end with such a sentence: the first
    gets a random share of the target, the second the rest, and each takes the fewest sentences that reach its share. A
    random B leaves room for its share, so that it does not end early with its document.
    """

    version: ClassVar[int] = 4
    places: ClassVar[dict[int, Callable[..., Range]]] = {RANDOM: in_another_with_room}

    def chunks(self, bounds: np.ndarray, first: np.ndarray, ends: np.ndarray, room: int, share: Share) -> Chunks:
        target = self.target(first, room, share)
        one = 1 + below(share("split", first), target - 1)
        middle = np.minimum(np.searchsorted(bounds, bounds[first] + one), ends)
        stop = np.searchsorted(bounds, bounds[middle] + target - one)
        # A document's rest that is too short for both shares is cut at a random sentence boundary.
        is_rest = stop > ends
        middle = np.where(is_rest, first + 1 + below(share("rest", first), ends - first - 1), middle)
        return Chunks(first, middle, np.minimum(stop, ends), target - one)


@dataclasses.dataclass(frozen=True)
class SegmentPairs(SegmentFormat):
    """Two segments that fill a row together, each whole sentences. Label `is_random`: 1 if B is from another document.

    Attributes:
      random_next: share of pairs with a B from another document. Single-sentence chunks also get a random B, as in
        BERT, so the total share is higher.
      fewest: minimum sentences per chunk, if the document has that many left. With 1, as in BERT, a sentence that fills
        a row is a chunk by itself. If most sentences do, most pairs are random; 2 then balances the labels.
    """

    kind: str = dataclasses.field(init=False, default="segment_pairs")
    random_next: float = setting(0.5, least=0, most=1)
    labels: ClassVar[tuple[str, ...]] = ("is_random",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, RANDOM)
    fewest: int = setting(1, least=1)

    def identity(self) -> dict:
        """Leave out `fewest` at 1: plans made before it was a setting keep their fingerprints."""
        return {name: value for name, value in super().identity().items() if (name, value) != ("fewest", 1)}

    def shares(self) -> dict[int, float]:
        return {RANDOM: self.random_next}


@dataclasses.dataclass(frozen=True)
class SentencePairs(PairFormat):
    """A is one sentence; B is the next one, or one from another document. Label `is_random`: 1 for another document.

    (Liu et al. 2019, RoBERTa, arXiv 1907.11692, section 4.2, SENTENCE-PAIR+NSP.)

    Attributes:
      random_next: share of pairs with a B from another document. In addition, a document's last sentence gets a random
        B if it starts a pair.
    """

    kind: str = dataclasses.field(init=False, default="sentence_pairs")
    random_next: float = setting(0.5, least=0, most=1)
    labels: ClassVar[tuple[str, ...]] = ("is_random",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, RANDOM)

    def shares(self) -> dict[int, float]:
        return {RANDOM: self.random_next}

    def chunks(self, bounds: np.ndarray, first: np.ndarray, ends: np.ndarray, room: int, share: Share) -> Chunks:
        # Asking for one token makes a partner from elsewhere exactly one sentence.
        return Chunks(first, first + 1, np.minimum(first + 2, ends), partner_tokens=np.ones_like(first))


@dataclasses.dataclass(frozen=True)
class SentenceOrder(OrderFormat):
    """Two adjacent segments that fill a row together. Label `is_swapped`: 1 if B precedes A, in half the pairs.

    (Lan et al. 2020, ALBERT, arXiv 1909.11942, section 3.1.)

    A single sentence left at a document's end has no partner: it is lost, and counted.
    """

    kind: str = dataclasses.field(init=False, default="sentence_order")
    labels: ClassVar[tuple[str, ...]] = ("is_swapped",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, PREVIOUS)

    def shares(self) -> dict[int, float]:
        return {PREVIOUS: 0.5}


@dataclasses.dataclass(frozen=True)
class SentenceStructure(OrderFormat):
    """Two segments that fill a row together. Label `order`, a third each: 0 B follows A, 1 B precedes A, 2 random B.

    (Wang et al. 2020, StructBERT, arXiv 1908.04577, section 2.3.2.)

    A single sentence left at a document's end has no partner there. It gets a random B, so label 2 has more than a
    third; `PairExamples.label_counts` returns the actual counts.
    """

    kind: str = dataclasses.field(init=False, default="sentence_structure")
    labels: ClassVar[tuple[str, ...]] = ("order",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, PREVIOUS, RANDOM)

    def shares(self) -> dict[int, float]:
        return {RANDOM: 1 / 3, PREVIOUS: 1 / 3}


@dataclasses.dataclass(frozen=True)
class SentenceDistance(SegmentFormat):
    """Two segments that fill a row together. Label `distance`, a third each: 0 if B follows A, 1 if it is in the same
    document with one sentence or more between them, 2 if it is in another document.

    (Sun et al. 2020, ERNIE 2.0, arXiv 1907.12412, "Structure-aware Pre-training Tasks".)

    If a document has no such distant sentence, B follows A. A single sentence left at a document's end always gets a B
    from another document. So the labels are balanced only in long documents; `PairExamples.label_counts` returns the
    actual counts.
    """

    kind: str = dataclasses.field(init=False, default="sentence_distance")
    labels: ClassVar[tuple[str, ...]] = ("distance",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, DISTANT, RANDOM)

    def shares(self) -> dict[int, float]:
        return {RANDOM: 1 / 3, DISTANT: 1 / 3}
