"""Masking of whole words, n-grams, spans, and the phrases of a lexicon."""

import dataclasses
from typing import ClassVar

import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking.units import UnitMasking, runs
from bertjax.data.store import TokenStore
from bertjax.data.text import lexicon
from bertjax.data.text.words import Words
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

# SpanBERT's span lengths: n = 1 .. 10 words, geometric with p = 0.2, renormalized over these ten; mean 3.8.
SPAN_SHARES = 0.8 ** np.arange(10) / (0.8 ** np.arange(10)).sum()


@dataclasses.dataclass(frozen=True)
class WordMasking(UnitMasking):
    """Whole-word masking (google-research/bert, README, May 31st, 2019).

    As there, each token in a chosen word is replaced independently. Fields: see `Masking`.
    """

    one_decision: ClassVar[bool] = False
    spread: ClassVar[float] = 1.1

    kind: str = dataclasses.field(init=False, default="words")

    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        return np.arange(len(words.starts))


@dataclasses.dataclass(frozen=True)
class NgramMasking(UnitMasking):
    """N-gram masking: n whole words with probability proportional to 1/n (Lan et al. 2020, ALBERT; arXiv 1909.11942).

    The paper defines p(n) in section 4.1 but not the replacement. Here each token in a chosen n-gram is replaced
    independently, as in google-research/albert (create_pretraining_data.py). A segment's last n-gram may be shorter.
    Other fields: see `Masking`.

    Attributes:
      longest: largest n: 3 for ALBERT, 5 for XLNet (Yang et al. 2019, section 3.1; arXiv 1906.08237).
    """

    one_decision: ClassVar[bool] = False

    kind: str = dataclasses.field(init=False, default="ngrams")
    longest: int = setting(3, least=1)

    @property
    def shares(self) -> np.ndarray:
        """Probabilities for n = 1 .. `longest`; float64."""
        shares = 1 / np.arange(1, self.longest + 1)
        return shares / shares.sum()

    @property
    def spread(self) -> float:
        """Linear fit to the values measured with `longest` = 1, 3 and 5."""
        return (8 + 3 * self.longest) / 10

    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        return runs(words, self.shares, placed.ragged, draw)


@dataclasses.dataclass(frozen=True)
class SpanMasking(UnitMasking):
    """Span masking: whole words, each span replaced as a whole (Joshi et al. 2020, SpanBERT, 3.1; arXiv 1907.10529).

    Span lengths in words are geometric with p = 0.2, at most 10 (mean 3.8). Spans never overlap. A segment's last span
    may be shorter. Fields: see `Masking`.
    """

    one_decision: ClassVar[bool] = True  # the paper replaces all tokens of a span in the same way
    spread: ClassVar[float] = 4.0

    kind: str = dataclasses.field(init=False, default="spans")

    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        return runs(words, SPAN_SHARES, placed.ragged, draw)


@dataclasses.dataclass(frozen=True)
class PhraseMasking(UnitMasking):
    """Phrase and entity masking, with single words between (Sun et al. 2019, ERNIE 1.0, 3.2; arXiv 1904.09223).

    Each unit is replaced as a whole; the paper does not specify this. Its schedule (single tokens, then phrases, then
    entities) is a run with three stages. `bind` reads the lexicon.

    Attributes:
      lexicon: `mine` finds phrases in the token store; otherwise a UTF-8 file with one phrase per line.
      lexicon_size: maximum number of mined phrases.
    """

    one_decision: ClassVar[bool] = True
    spread: ClassVar[float] = 1.2

    kind: str = dataclasses.field(init=False, default="phrases")
    lexicon: str = lexicon.MINE
    lexicon_size: int = setting(50_000, least=1)

    def __post_init__(self):
        super().__post_init__()
        if not self.lexicon:
            raise UserError(
                f"masking.lexicon='' is not a file; use {lexicon.MINE!r} or a file with one phrase per line"
            )

    def bind(self, store: TokenStore | None) -> "BoundPhraseMasking":
        """Return the masking with its phrases, mined if the store has none yet; without a store it has none.

        Raises:
          UserError: see `bertjax.data.text.lexicon.open_lexicon`.
        """
        choices = {field.name: getattr(self, field.name) for field in dataclasses.fields(PhraseMasking) if field.init}
        if store is None:
            return BoundPhraseMasking(**choices, phrases=lexicon.Lexicon({}, fingerprint=""))
        return BoundPhraseMasking(**choices, phrases=lexicon.open_lexicon(store, self.lexicon, self.lexicon_size))

    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        raise TypeError("PhraseMasking has no phrases before `bind`")


@dataclasses.dataclass(frozen=True)
class BoundPhraseMasking(PhraseMasking):
    """`PhraseMasking` after `bind`, with its `phrases`."""

    phrases: lexicon.Lexicon = dataclasses.field(kw_only=True)

    @property
    def fingerprints(self) -> dict[str, str]:
        return {"lexicon": self.phrases.fingerprint}

    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        return self.phrases.units(words, placed.ragged.tokens, placed.vocabulary.size)
