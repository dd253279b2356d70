"""Masking of single tokens."""

import dataclasses
import math

import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking.base import Choice, Masking, budget, token_bits

_LAST = np.iinfo(np.uint32).max


@dataclasses.dataclass(frozen=True)
class TokenMasking(Masking):
    """Single tokens, each decided on its own (Devlin et al. 2019, section 3.1, task 1; arXiv 1810.04805).

    Every example gives exactly its share. Fields: see `Masking`.
    """

    kind: str = dataclasses.field(init=False, default="tokens")

    def choose(self, placed: PlacedExamples, draw: Draw) -> Choice:
        """The tokens of each example with the lowest random numbers.

        Tokens that tie for the last place are all chosen, since nothing but their keys may decide.
        """
        ragged = placed.ragged
        real = ~ragged.special
        _, wanted = budget(ragged, self.rate)
        priority = token_bits(ragged, draw, "mask/choose")
        # Every example is sorted in a line of its own, special tokens and the rest of the line at its end.
        lines = np.full((len(ragged.ids), ragged.lengths.max(initial=1)), _LAST, np.uint32)
        lines[np.arange(lines.shape[1]) < ragged.lengths[:, None]] = np.where(real, priority, _LAST)
        lines.sort(axis=1)
        last = lines[np.arange(len(lines)), wanted - 1]
        tokens = np.flatnonzero((priority <= ragged.spread(last)) & real)
        return Choice(tokens, tokens)

    def most_predicted(self, seq_len: int, row_examples: int) -> float:
        """Each of N examples has two special tokens at least and rounds its share up by one half at most.

        Only examples of so few tokens that the one that they always give is more than their share can take more.
        """
        return math.floor(self.rate * (seq_len - 2 * row_examples) + 0.5 * row_examples)
