"""Sentence pairs as BERT makes them: segment B follows segment A, or comes from another document."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.formats.base import Block
from bertjax.data.random import bits, uniform
from bertjax.data.store import Split, TokenStore
from bertjax.errors import UserError

KINDS = ("segment_pairs",)
TRIMS = ("random_end", "outer_ends")
_DELIMITERS = 3  # [CLS] A [SEP] B [SEP]


@dataclasses.dataclass(frozen=True)
class SegmentPairs:
    """How documents become pairs (Devlin et al. 2019, appendix A.2).

    Attributes:
      kind: `segment_pairs`.
      short_seq_prob: share of the pairs that aim at a random shorter length, so that fine-tuning on short inputs is
        not a surprise.
      trim: what goes when a pair is too long, always from the longer segment: `random_end` (a token at its front or
        its back, by a coin, as Devlin et al.) or `outer_ends` (A's front and B's end, so that A and B still adjoin).
      random_next: share of the pairs whose B comes from another document. A chunk of a single sentence has nothing
        left for B and takes a random one besides, as in BERT: the share over all pairs lies above this one.
    """

    kind: str = "segment_pairs"
    short_seq_prob: float = 0.1
    trim: str = "random_end"
    random_next: float = 0.5

    def __post_init__(self):
        for field, value, known in (("kind", self.kind, KINDS), ("trim", self.trim, TRIMS)):
            if value not in known:
                raise UserError(f"examples.{field}={value!r} is unknown; choose one of {', '.join(known)}")
        for field in ("short_seq_prob", "random_next"):
            if not 0.0 <= getattr(self, field) <= 1.0:
                raise UserError(f"examples.{field}={getattr(self, field)} must lie between 0 and 1")

    def plan(self, split: Split, seq_len: int, seed: int) -> np.ndarray:
        """The pairs of one pass over the split; int64 [E, 5]: a_start, a_stop, b_start, b_stop, is_random.

        The starts and stops are token ranges of the split, trimmed to fit `seq_len` and never empty. A chunk is the
        run of whole sentences that reaches the target length; A ends at a random sentence of it; B is the rest, or a
        run from another document, in which case the rest is left for the next chunk. All that depends on nothing but
        the sentence a chunk begins with, hence it is computed for every sentence at once, and only the walk from
        chunk to chunk is sequential.

        Raises:
          UserError: fewer than two documents, or a `seq_len` that cannot hold a pair.
        """
        room = seq_len - _DELIMITERS
        if room < 2:
            raise UserError(f"seq_len={seq_len} cannot hold a sentence pair; use at least {2 + _DELIMITERS}")
        bounds, documents = np.asarray(split.sentences), np.asarray(split.documents)
        if len(documents) <= 2:
            raise UserError(
                f"sentence pairs need at least two documents and there is {len(documents) - 1}; "
                "add documents or split them where their sentences stop being consecutive"
            )
        share = functools.partial(_share, seed)

        first = np.arange(len(bounds) - 1)
        owner = np.repeat(np.arange(len(documents) - 1), np.diff(documents))
        is_short = share("short", first) < self.short_seq_prob
        target = np.where(is_short, 2 + _below(share("length", first), room - 1), room)
        stop = np.minimum(np.searchsorted(bounds, bounds[:-1] + target), documents[owner + 1])
        middle = first + 1 + _below(share("split", first), stop - first - 1)
        is_random = (stop - first == 1) | (share("random", first) < self.random_next)

        first = _walk(np.where(is_random, middle, stop))
        owner, target, stop, middle, is_random = (each[first] for each in (owner, target, stop, middle, is_random))
        a_start, a_stop = bounds[first], bounds[middle]

        other = _below(share("document", first), len(documents) - 2)
        other += other >= owner
        begin = documents[other] + _below(share("start", first), documents[other + 1] - documents[other])
        wanted = np.maximum(target - (a_stop - a_start), 1)
        end = np.minimum(np.searchsorted(bounds, bounds[begin] + wanted), documents[other + 1])
        b_start = bounds[np.where(is_random, begin, middle)]
        b_stop = bounds[np.where(is_random, end, stop)]

        a_cut, b_cut = _excess(a_stop - a_start, b_stop - b_start, room)
        a_front, b_front = a_cut, np.zeros_like(b_cut)
        if self.trim == "random_end":
            a_front, b_front = _heads(seed, "pairs/trim_a", first, a_cut), _heads(seed, "pairs/trim_b", first, b_cut)
        a_start, a_stop = a_start + a_front, a_stop - (a_cut - a_front)
        b_start, b_stop = b_start + b_front, b_stop - (b_cut - b_front)
        return np.stack([a_start, a_stop, b_start, b_stop, is_random], axis=1)

    def blocks(self, split: Split, seq_len: int, seed: int) -> Iterator[Block]:
        """All pairs as one block."""
        yield Block(self.plan(split, seq_len, seed), 0, 0)

    def open(self, store: TokenStore, split: str, ranges: Path) -> "SegmentPairExamples":
        """The examples of a plan that was saved as `ranges`."""
        return SegmentPairExamples(store, split, ranges, Vocabulary.of(store.tokenizer))


@dataclasses.dataclass(frozen=True)
class SegmentPairExamples:
    """`Examples` [CLS] A [SEP] B [SEP] with the label `is_random` (1: B comes from another document); int32.

    Attributes:
      store: holds the tokens.
      split: `train` or `heldout`.
      ranges: what `SegmentPairs.plan` gave, as .npy.
      vocabulary: of the tokens.
    """

    store: TokenStore
    split: str
    ranges: Path
    vocabulary: Vocabulary

    def __getstate__(self) -> dict:
        """The fields alone: a process that receives the examples opens the memory maps itself."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _ranges(self) -> np.ndarray:
        return np.load(self.ranges, mmap_mode="r").view(np.ndarray)

    @functools.cached_property
    def _tokens(self) -> np.ndarray:
        return self.store.split(self.split).tokens.view(np.ndarray)

    @property
    def random_share(self) -> float:
        """Share of the pairs whose B comes from another document."""
        return float(self._ranges[:, 4].mean())

    def __len__(self) -> int:
        return len(self._ranges)

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        a_start, a_stop, b_start, b_stop, _ = self._ranges[start:stop].T
        return (a_stop - a_start + b_stop - b_start + _DELIMITERS).astype(np.int32)

    def take(self, indices: np.ndarray) -> Ragged:
        a_start, a_stop, b_start, b_stop, is_random = self._ranges[indices].T
        a_length = a_stop - a_start
        lengths = a_length + (b_stop - b_start) + _DELIMITERS
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        index = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        a_end = np.repeat(a_length + 1, lengths)  # place of the [SEP] that closes A

        in_b = index > a_end
        delimiter = (index == 0) | (index == a_end)
        delimiter[offsets[1:] - 1] = True
        sources = index + np.where(in_b, np.repeat(b_start - a_length - 2, lengths), np.repeat(a_start - 1, lengths))
        tokens = np.full(len(index), self.vocabulary.sep_id, np.int32)
        tokens[offsets[:-1]] = self.vocabulary.cls_id
        tokens[~delimiter] = self._tokens[sources[~delimiter]]
        return Ragged(
            tokens=tokens,
            segments=in_b.astype(np.int32),
            special=self.vocabulary.is_special[tokens],
            offsets=offsets,
            labels={"is_random": is_random.astype(np.int32)},
            ids=np.asarray(indices, np.int64),
        )


def _walk(following: np.ndarray) -> np.ndarray:
    """The indices met on the way from 0 until `following` leads out of the array."""
    steps, at, met = following.tolist(), 0, []
    while at < len(steps):
        met.append(at)
        at = steps[at]
    return np.array(met, np.int64)


def _excess(a_length: np.ndarray, b_length: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """How much A and B lose when tokens go one by one from the longer (from B where both are equal) until both fit."""
    fits = a_length + b_length <= room
    a_kept = np.minimum(a_length, np.maximum(room - b_length, (room + 1) // 2))
    return np.where(fits, 0, a_length - a_kept), np.where(fits, 0, b_length - (room - a_kept))


def _heads(seed: int, stream: str, first: np.ndarray, tosses: np.ndarray) -> np.ndarray:
    """How many of `tosses` fair coins show heads, 32 coins to a word of random bits."""
    heads = np.zeros_like(tosses)
    for word in range(-(-int(tosses.max(initial=0)) // 32)):
        left = np.clip(tosses - 32 * word, 0, 32).astype(np.uint64)
        coins = bits(seed, stream, 0, first, word) & ((np.uint64(1) << left) - np.uint64(1))
        heads += np.bitwise_count(coins)
    return heads


def _share(seed: int, use: str, first: np.ndarray) -> np.ndarray:
    return uniform(seed, f"pairs/{use}", 0, first, 0)


def _below(share: np.ndarray, size: int | np.ndarray) -> np.ndarray:
    """A number in [0, 1) as an integer in range(size)."""
    return (share * size).astype(np.int64)
