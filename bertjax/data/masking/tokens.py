"""Single-token masking, as in BERT, and with a number of tokens drawn for each example."""

import dataclasses
import math

import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.masking.base import Choice, Masking, budget, token_bits
from bertjax.data.random import bits
from bertjax.runtime.setting import setting

_LAST = np.iinfo(np.uint32).max


@dataclasses.dataclass(frozen=True)
class TokenMasking(Masking):
    """Single tokens, each replaced independently (Devlin et al. 2019, section 3.1, task 1; arXiv 1810.04805).

    Every example gets exactly its share, see `budget`. Fields: see `Masking`.
    """

    kind: str = dataclasses.field(init=False, default="tokens")

    def choose(self, placed: PlacedExamples, draw: Draw) -> Choice:
        """Choose the tokens with the lowest random numbers in each example.

        All tokens that tie for last place are chosen, because nothing but the random number may decide.
        """
        ragged = placed.ragged
        real = ~ragged.special
        counts = self.counts(ragged, draw)
        priority = token_bits(ragged, draw, "mask/choose")
        # One padded line per example, sorted; special tokens and padding have the largest value and end up last.
        lines = np.full((len(ragged.ids), ragged.lengths.max(initial=1)), _LAST, np.uint32)
        lines[np.arange(lines.shape[1]) < ragged.lengths[:, None]] = np.where(real, priority, _LAST)
        lines.sort(axis=1)
        # The count-th smallest number is the threshold; one comparison then selects tokens without a scatter.
        last = lines[np.arange(len(lines)), counts - 1]
        tokens = np.flatnonzero((priority <= ragged.spread(last)) & real)
        return Choice(tokens, tokens)

    def counts(self, ragged: Ragged, draw: Draw) -> np.ndarray:
        """Return the number of tokens to predict in each example; int64 [M]."""
        _, counts = budget(ragged, self.rate)
        return counts

    def most_predicted(self, seq_len: int, row_examples: int) -> float:
        """Bound: each of N examples has two special tokens or more, and rounding adds at most half a token.

        Only very short examples can exceed it: they predict one token although their share is smaller.
        """
        return math.floor(self.rate * (seq_len - 2 * row_examples) + 0.5 * row_examples)


@dataclasses.dataclass(frozen=True)
class UniformMasking(TokenMasking):
    """A random share of each example, new in each epoch (Nie et al., 2025, LLaDA, section 2.1; arXiv 2502.09992).

    The number of predicted tokens is uniform from 1 to `rate` times the maskable ones. All of them become [MASK].

    Attributes:
      rate: largest share of tokens to predict.
    """

    kind: str = dataclasses.field(init=False, default="uniform")
    rate: float = setting(1.0, above=0, most=1)
    mask: float = setting(1.0, least=0, most=1)
    random: float = setting(0.0, least=0, most=1)

    def counts(self, ragged: Ragged, draw: Draw) -> np.ndarray:
        _, most = budget(ragged, self.rate)
        share = bits(draw.seed, "mask/count", draw.epochs, ragged.ids, 0) * 2.0**-32
        return np.minimum(1 + np.floor(share * most).astype(np.int64), most)

    def most_predicted(self, seq_len: int, row_examples: int) -> float:
        """Bound: one example can fill the row, and any example can be hidden whole."""
        return self.rate * seq_len
