"""Maskings whose units are determined by the words: words, n-grams and spans."""

import dataclasses
from typing import ClassVar

import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking.units import UnitMasking, runs
from bertjax.data.text.words import Words

# ALBERT: n words, n = 1 .. 3, with a probability proportional to 1/n.
NGRAM_SHARES = (1 / np.arange(1, 4)) / (1 / np.arange(1, 4)).sum()
# SpanBERT: n words, n = 1 .. 10, geometric with p = 0.2, normalized over the ten lengths; the mean is 3.8.
SPAN_SHARES = 0.8 ** np.arange(10) / (0.8 ** np.arange(10)).sum()


@dataclasses.dataclass(frozen=True)
class WordMasking(UnitMasking):
    """Whole words (the whole-word masking of google-research/bert, README, May 31st, 2019).

    As there, each token of a chosen word is replaced independently. Fields: see `Masking`.
    """

    one_decision: ClassVar[bool] = False
    spread: ClassVar[float] = 1.1

    kind: str = dataclasses.field(init=False, default="words")

    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        return np.arange(len(words.starts))


@dataclasses.dataclass(frozen=True)
class NgramMasking(UnitMasking):
    """Runs of n = 1, 2 or 3 whole words, p(n) = (1/n) / (1 + 1/2 + 1/3) (Lan et al. 2020, ALBERT; arXiv 1909.11942).

    The paper defines p(n) in section 4.1 but not the replacement. Here each token of a chosen n-gram is replaced
    independently, as in create_pretraining_data.py of google-research/albert. The last n-gram of a segment may be
    shorter. Fields: see `Masking`.
    """

    one_decision: ClassVar[bool] = False
    spread: ClassVar[float] = 1.7

    kind: str = dataclasses.field(init=False, default="ngrams")

    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        return runs(words, NGRAM_SHARES, placed.ragged, draw)


@dataclasses.dataclass(frozen=True)
class SpanMasking(UnitMasking):
    """Spans of whole words, each replaced as a whole (Joshi et al. 2020, SpanBERT, section 3.1; arXiv 1907.10529).

    Their lengths in words are geometric with p = 0.2, at most 10 (mean 3.8). Spans never overlap. The last span of a
    segment may be shorter. Fields: see `Masking`.
    """

    one_decision: ClassVar[bool] = True
    spread: ClassVar[float] = 4.0

    kind: str = dataclasses.field(init=False, default="spans")

    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        return runs(words, SPAN_SHARES, placed.ragged, draw)
