"""Masking of single tokens."""

import dataclasses
import math

import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking.base import Choice, Masking, budget, token_bits

_LAST = np.iinfo(np.uint32).max


@dataclasses.dataclass(frozen=True)
class TokenMasking(Masking):
    """Single tokens, each replaced independently (Devlin et al. 2019, section 3.1, task 1; arXiv 1810.04805).

    The number of chosen tokens of every example is exactly its share. Fields: see `Masking`.
    """

    kind: str = dataclasses.field(init=False, default="tokens")

    def choose(self, placed: PlacedExamples, draw: Draw) -> Choice:
        """Return the tokens of each example with the lowest random numbers.

        Tokens that tie for the last place are all chosen, because only their keys may decide.
        """
        ragged = placed.ragged
        real = ~ragged.special
        _, counts = budget(ragged, self.rate)
        priority = token_bits(ragged, draw, "mask/choose")
        # Each example is sorted in its own line, with special tokens and padding at the end.
        lines = np.full((len(ragged.ids), ragged.lengths.max(initial=1)), _LAST, np.uint32)
        lines[np.arange(lines.shape[1]) < ragged.lengths[:, None]] = np.where(real, priority, _LAST)
        lines.sort(axis=1)
        last = lines[np.arange(len(lines)), counts - 1]
        tokens = np.flatnonzero((priority <= ragged.spread(last)) & real)
        return Choice(tokens, tokens)

    def most_predicted(self, seq_len: int, row_examples: int) -> float:
        """Each of N examples has at least two special tokens and rounds its share up by at most one half.

        Only very short examples can need more: they have one chosen token although their share is smaller.
        """
        return math.floor(self.rate * (seq_len - 2 * row_examples) + 0.5 * row_examples)
