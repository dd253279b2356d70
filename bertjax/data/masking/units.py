"""Base for word-level maskings: units of whole words, chosen together and optionally replaced together."""

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

_DEVIATIONS = 2  # a normal variable exceeds its mean by more than two standard deviations with probability 2.3%


@dataclasses.dataclass(frozen=True)
class UnitMasking(Masking):
    """Masking in units, each one whole word or more. No unit crosses a special token or a segment edge.

    Attributes:
      one_decision: whether a unit is masked, replaced or left unchanged as a whole, not token by token.
      spread: standard deviation, in tokens, between an example's chosen tokens and its share, measured on English and
        Korean texts; it sets the slack in `capacity`.
    """

    one_decision: ClassVar[bool]
    spread: ClassVar[float]

    @abc.abstractmethod
    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        """Return the first word in each unit; int64 [U], ascending, including the first word in every stretch."""

    def choose(self, placed: PlacedExamples, draw: Draw) -> Choice:
        """Return all tokens in the units that `chosen_units` picks."""
        ragged = placed.ragged
        words = words_of(placed)
        first = self.units(words, placed, draw)
        starts = words.starts[first]
        lengths = np.add.reduceat(words.lengths, first) if len(first) else words.lengths
        chosen = chosen_units(starts, lengths, ragged, draw, self.rate)
        # Units cover the maskable tokens in order, so flags per unit repeat into flags per token.
        tokens = np.flatnonzero(~ragged.special)[np.repeat(chosen, lengths)]
        return Choice(tokens, np.repeat(starts[chosen], lengths[chosen]) if self.one_decision else tokens)

    def most_predicted(self, seq_len: int, row_examples: int) -> float:
        """Return the mean plus two standard deviations for N independent examples with two special tokens each.

        In rows with 128 tokens or more, one example or many short ones, this drops less than 0.5% of the chosen tokens.
        Shorter rows, and text with unusually long words, lose more.
        """
        return self.rate * (seq_len - 2 * row_examples) + _DEVIATIONS * self.spread * math.sqrt(row_examples)


def words_of(placed: PlacedExamples) -> Words:
    """Return all words in a batch; a stretch stays within one segment of one example."""
    ragged = placed.ragged
    # Segments restart at 0, so an example boundary between two single-segment examples needs its own line.
    boundary = np.diff(ragged.segments, prepend=-1) != 0
    boundary[ragged.offsets[:-1]] = True
    return Words.of(ragged.tokens, boundary, placed.vocabulary)


def chosen_units(starts: np.ndarray, lengths: np.ndarray, ragged: Ragged, draw: Draw, rate: float) -> np.ndarray:
    """Choose random units in each example so that their tokens add up to about its share; bool [U].

    Lay an example's units in random order around a circle with circumference m, its maskable tokens. Take an arc with
    length b, the share, from a random point, and choose the units whose midpoint is on the arc. Then every unit, long
    or short, is chosen with probability b / m, the expected number of chosen tokens is b, and the actual number differs
    from b by at most the longest unit. It is zero if units are longer than the share and no midpoint is on the arc.

    Args:
      starts: int64 [U], first token in each unit, ascending.
      lengths: int64 [U], tokens per unit; the units cover all maskable tokens.
      ragged: the examples.
      draw: seed and epochs for the random numbers.
      rate: share of maskable tokens to choose.
    """
    maskable, share = budget(ragged, rate)
    owners = ragged.token_examples[starts]
    priority = token_bits(ragged, draw, "mask/choose", starts)
    # Stable: ties between equal priorities must fall by the order within the example, whatever else the batch holds.
    order = np.argsort(owners.astype(np.uint64) << np.uint64(32) | priority, kind="stable")
    before = np.cumsum(lengths[order]) - lengths[order] - (np.cumsum(maskable) - maskable)[owners]
    # In half tokens, so that midpoints are integers.
    point = bits(draw.seed, "mask/turn", draw.epochs, ragged.ids, 0).astype(np.int64) * (2 * maskable) >> 32
    middle = 2 * before + lengths[order] - point[owners]
    chosen = np.empty(len(starts), bool)
    chosen[order] = middle % (2 * maskable)[owners] < (2 * share)[owners]
    return chosen


def runs(words: Words, shares: np.ndarray, ragged: Ragged, draw: Draw) -> np.ndarray:
    """Cut every stretch into word runs with random lengths and return the first word in each run.

    Lengths are independent: n words with probability `shares[n - 1]`. Only a stretch's last run may be shorter.
    """
    # A stretch with W words has at most W runs, so run i can use word i's random number.
    share = token_shares(ragged, draw, "mask/length", words.starts)
    lengths = 1 + np.searchsorted(np.cumsum(shares)[:-1], share, side="right")
    before = np.cumsum(lengths) - lengths
    place = before - before[words.stretch_starts][words.stretches]
    exists = place < words.stretch_lengths[words.stretches]  # the others would start beyond their stretch
    return (words.stretch_starts[words.stretches] + place)[exists]
