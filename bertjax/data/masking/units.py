"""Masking of runs of whole words: units that are chosen together, and may be replaced together."""

import abc
import dataclasses
import math
from typing import ClassVar

import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.masking.base import Choice, Masking, budget, token_bits, token_shares
from bertjax.data.random import bits
from bertjax.data.text.words import Words

_DEVIATIONS = 2  # 2.3% of a normal distribution are above two standard deviations


@dataclasses.dataclass(frozen=True)
class UnitMasking(Masking):
    """Masking whose units are one or more whole words. No unit crosses a special token or the edge of a segment.

    Attributes:
      one_decision: whether a unit is masked, replaced or left unchanged as a whole, not token by token.
      spread: standard deviation, in tokens, of the number of chosen tokens of an example around its share, as measured
        on English and Korean texts; it determines the slack of the capacity.
    """

    one_decision: ClassVar[bool]
    spread: ClassVar[float]

    @abc.abstractmethod
    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        """Return the first word of each unit; int64 [U], ascending, including the first word of every stretch."""

    def choose(self, placed: PlacedExamples, draw: Draw) -> Choice:
        """Return all tokens of the units that `chosen_units` chooses."""
        ragged = placed.ragged
        words = words_of(placed)
        first = self.units(words, placed, draw)
        starts = words.starts[first]
        lengths = np.add.reduceat(words.lengths, first) if len(first) else words.lengths
        chosen = chosen_units(starts, lengths, ragged, draw, self.rate)
        tokens = np.flatnonzero(~ragged.special)[np.repeat(chosen, lengths)]
        return Choice(tokens, np.repeat(starts[chosen], lengths[chosen]) if self.one_decision else tokens)

    def most_predicted(self, seq_len: int, row_examples: int) -> float:
        """Return the mean plus two standard deviations for N independent examples with two special tokens each.

        In rows of 128 tokens or more, with one example or many short ones, less than 0.5% of the chosen tokens have no
        place. Shorter rows, and text with unusually long words, lose more.
        """
        return self.rate * (seq_len - 2 * row_examples) + _DEVIATIONS * self.spread * math.sqrt(row_examples)


def words_of(placed: PlacedExamples) -> Words:
    """Return the words of all examples of a batch; a stretch is within one segment of one example."""
    ragged = placed.ragged
    boundary = np.diff(ragged.segments, prepend=-1) != 0
    boundary[ragged.offsets[:-1]] = True
    return Words.of(ragged.tokens, boundary, placed.vocabulary)


def chosen_units(starts: np.ndarray, lengths: np.ndarray, ragged: Ragged, draw: Draw, rate: float) -> np.ndarray:
    """Choose random units of every example whose tokens make up its share; bool [U].

    The units of an example are in random order on a circle whose length is m, the number of its maskable tokens. From a
    random point, an arc as long as the share b is taken; the units whose middle is in the arc are chosen. So every
    unit, long or short, is chosen with probability b / m, the mean number of chosen tokens is b, and the number of an
    example differs from b by at most its longest unit. It is zero if the units are longer than the share and the arc
    has none of their middles.

    Args:
      starts: int64 [U], the first token of each unit, ascending.
      lengths: int64 [U], the number of tokens of each unit; the units cover all maskable tokens.
      ragged: the examples.
      draw: the seed and epochs of the random numbers.
      rate: the share of the maskable tokens to choose.
    """
    maskable, share = budget(ragged, rate)
    owners = ragged.token_examples[starts]
    priority = token_bits(ragged, draw, "mask/choose", starts)
    # Stable, because only the keys and the order within the example may decide between equal priorities.
    order = np.argsort(owners.astype(np.uint64) << np.uint64(32) | priority, kind="stable")
    before = np.cumsum(lengths[order]) - lengths[order] - (np.cumsum(maskable) - maskable)[owners]
    # In half tokens, so that middles are whole numbers.
    point = bits(draw.seed, "mask/turn", draw.epochs, ragged.ids, 0).astype(np.int64) * (2 * maskable) >> 32
    middle = 2 * before + lengths[order] - point[owners]
    chosen = np.empty(len(starts), bool)
    chosen[order] = middle % (2 * maskable)[owners] < (2 * share)[owners]
    return chosen


def runs(words: Words, shares: np.ndarray, ragged: Ragged, draw: Draw) -> np.ndarray:
    """Cut every stretch into runs of words with random lengths and return the first word of each run.

    The lengths are independent: n words with probability `shares[n - 1]`. Only the last run of a stretch may be
    shorter.
    """
    # A stretch of W words has at most W runs: the i-th run uses the random number of the i-th word.
    share = token_shares(ragged, draw, "mask/length", words.starts)
    lengths = 1 + np.searchsorted(np.cumsum(shares)[:-1], share, side="right")
    before = np.cumsum(lengths) - lengths
    place = before - before[words.stretch_starts][words.stretches]
    exists = place < words.stretch_lengths[words.stretches]
    return (words.stretch_starts[words.stretches] + place)[exists]
