"""Sentence reordering: cut a paragraph into one to three segments and permute them.

(Sun et al. 2020, ERNIE 2.0, arXiv 1907.12412, "Structure-aware Pre-training Tasks".)
"""

import copy
import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.formats import Block, StoredExamples, TextFormat, concatenated
from bertjax.data.formats.partners import below
from bertjax.data.formats.runs import DocSentences
from bertjax.data.framing import Frame, special_tokens
from bertjax.data.random import uniform
from bertjax.data.store import Split, TokenStore
from bertjax.runtime.errors import UserError

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
