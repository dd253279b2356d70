"""Phrase masking with a lexicon."""

import dataclasses
from typing import ClassVar

import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking.units import UnitMasking
from bertjax.data.store import TokenStore
from bertjax.data.text import lexicon
from bertjax.data.text.words import Words
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting


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
