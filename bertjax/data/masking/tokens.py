"""Masking of single tokens."""

import dataclasses
import math

import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking.base import Choice, Masking, budget, token_key
from bertjax.data.random import bits


@dataclasses.dataclass(frozen=True)
class TokenMasking(Masking):
    """Single tokens, each decided on its own (Devlin et al. 2019, section 3.1, task 1; arXiv 1810.04805).

    Every example gives exactly its share. Fields: see `Masking`.
    """

    kind: str = "tokens"

    def choose(self, placed: PlacedExamples, draw: Draw) -> Choice:
        """The tokens of each example with the lowest random numbers.

        Tokens that tie for the last place are all chosen, since nothing but their keys may decide.
        """
        ragged = placed.ragged
        owners = ragged.token_examples
        _, wanted = budget(ragged, self.rate)
        priority = bits(draw.seed, "mask/choose", *token_key(ragged, draw, slice(None)))
        # One sort for all examples: each keeps its stretch, with the special tokens at the end of it.
        keys = (2 * owners + ragged.special).astype(np.uint64) << np.uint64(32) | priority
        last = np.sort(keys)[ragged.offsets[:-1] + wanted - 1]
        tokens = np.flatnonzero((keys <= last[owners]) & ~ragged.special)
        return Choice(tokens, tokens)

    def most_predicted(self, seq_len: int, row_examples: int) -> float:
        """Each of N examples has two special tokens at least and rounds its share up by one half at most.

        Only examples of so few tokens that the one that they always give is more than their share can take more.
        """
        return math.floor(self.rate * (seq_len - 2 * row_examples) + 0.5 * row_examples)
