"""Masking of runs of whole words: units that are chosen, and that may be decided, together."""

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

_DEVIATIONS = 2  # of a normal distribution, 2.3% lie above so many


@dataclasses.dataclass(frozen=True)
class UnitMasking(Masking):
    """Masking whose units are one or more whole words. No unit crosses a special token or the edge of a segment.

    Attributes:
      one_decision: a unit is hidden, replaced or left as a whole; otherwise each token of it on its own.
      spread: standard deviation, in tokens, of what an example gives around its share, as seen on English and
        Korean texts; the slack of the capacity follows from it.
    """

    one_decision: ClassVar[bool]
    spread: ClassVar[float]

    @abc.abstractmethod
    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        """The first word of each unit; int64 [U], ascending, every start of a stretch among them."""

    def choose(self, placed: PlacedExamples, draw: Draw) -> Choice:
        """Units by `chosen_units`, with all their tokens."""
        ragged = placed.ragged
        words = words_of(placed)
        first = self.units(words, placed, draw)
        starts = words.starts[first]
        lengths = np.add.reduceat(words.lengths, first) if len(first) else words.lengths
        chosen = chosen_units(starts, lengths, ragged, draw, self.rate)
        tokens = np.flatnonzero(~ragged.special)[np.repeat(chosen, lengths)]
        return Choice(tokens, np.repeat(starts[chosen], lengths[chosen]) if self.one_decision else tokens)

    def most_predicted(self, seq_len: int, row_examples: int) -> float:
        """The mean and two standard deviations of N independent examples with two special tokens each.

        In rows of 128 tokens and more, whether of one example or full of short ones, less than 0.5% of the chosen
        tokens find no place; shorter rows, and words much longer than those of ordinary text, lose more.
        """
        return self.rate * (seq_len - 2 * row_examples) + _DEVIATIONS * self.spread * math.sqrt(row_examples)


def words_of(placed: PlacedExamples) -> Words:
    """The words of all examples of a batch; a stretch lies within one segment of one example."""
    ragged = placed.ragged
    boundary = np.diff(ragged.segments, prepend=-1) != 0
    boundary[ragged.offsets[:-1]] = True
    return Words.of(ragged.tokens, boundary, placed.vocabulary)


def chosen_units(starts: np.ndarray, lengths: np.ndarray, ragged: Ragged, draw: Draw, rate: float) -> np.ndarray:
    """Chooses units of every example at random, until their tokens make up its share; bool [U].

    The units of an example lie in random order on a circle as long as the example has maskable tokens m. From a
    random point of it on, a stretch as long as the share b is taken, with the units whose middle lies in it. So every
    unit, long or short, is taken with probability b / m, the mean of the tokens taken is b, and no example gives more
    or less than b by more than its longest unit. An example gives nothing where its units are longer than its share
    and none of their middles is met.

    Args:
      starts: int64 [U], the first token of each unit, ascending.
      lengths: int64 [U], its number of tokens; the units cover all maskable tokens.
      ragged: the examples.
      draw: the random numbers' seed and epochs.
      rate: the share.
    """
    maskable, wanted = budget(ragged, rate)
    owners = ragged.token_examples[starts]
    priority = token_bits(ragged, draw, "mask/choose", starts)
    # Stable, since only the keys and the order within the example may decide between equal priorities.
    order = np.argsort(owners.astype(np.uint64) << np.uint64(32) | priority, kind="stable")
    before = np.cumsum(lengths[order]) - lengths[order] - (np.cumsum(maskable) - maskable)[owners]
    # In half tokens, so that middles are whole numbers.
    point = bits(draw.seed, "mask/turn", draw.epochs, ragged.ids, 0).astype(np.int64) * (2 * maskable) >> 32
    middle = 2 * before + lengths[order] - point[owners]
    chosen = np.empty(len(starts), bool)
    chosen[order] = middle % (2 * maskable)[owners] < (2 * wanted)[owners]
    return chosen


def runs(words: Words, shares: np.ndarray, ragged: Ragged, draw: Draw) -> np.ndarray:
    """Cuts every stretch into runs of words with random lengths, from its first word on; the first word of each.

    The lengths are independent: n words with probability `shares[n - 1]`. Only the last run of a stretch is shorter
    where the stretch ends.
    """
    # A stretch of W words has W runs at most: its i-th word lends its random number to the i-th run.
    share = token_shares(ragged, draw, "mask/length", words.starts)
    lengths = 1 + np.searchsorted(np.cumsum(shares)[:-1], share, side="right")
    before = np.cumsum(lengths) - lengths
    place = before - before[words.stretch_starts][words.stretches]
    exists = place < words.stretch_lengths[words.stretches]
    return (words.stretch_starts[words.stretches] + place)[exists]
