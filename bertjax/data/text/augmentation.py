"""Text augmentation for distillation: mask words, or replace a text by one of its n-grams.

A teacher labels the variants. Both methods follow Tang et al. (2019, arXiv 1903.12136), who leave [MASK] in the text;
Jiao et al. (2020, arXiv 1909.10351) let a masked LM fill it. White space separates words; in scripts without spaces
each character is a word. A variant depends only on the seed, the text and its number, and the copy number.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bertjax.data.random import bits, uniform
from bertjax.data.text import unicode
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import Allowed

MASK = "[MASK]"


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Settings that determine how variants are drawn.

    Attributes:
      copies: variants drawn per record.
      mask: probability that a word becomes [MASK].
      ngrams: probability that an n-gram replaces the whole text.
      longest: largest n-gram size in words.
      seed: seed for all draws.
    """

    copies: int = 20
    mask: float = 0.1
    ngrams: float = 0.25
    longest: int = 5
    seed: int = 0

    def __post_init__(self):
        for flag, value in (("--copies", self.copies), ("--longest-ngram", self.longest)):
            Allowed(least=1).check(flag, value)
        for flag, value in (("--mask", self.mask), ("--ngrams", self.ngrams)):
            Allowed(least=0, most=1).check(flag, value)
        if not self.mask and not self.ngrams:
            raise UserError("--mask=0.0 and --ngrams=0.0 change nothing; raise one of them")

    def variant(self, text: str, number: int, copy: int, column: int = 0) -> str:
        """Return one variant of `text`.

        Args:
          text: text to change.
          number: record number.
          copy: variant number, from 0.
          column: index of the text within its record.
        """
        words, stream = unicode.spaced_words(text), f"augmentation/{column}"
        is_ngram, of_length, of_place = uniform(self.seed, f"{stream}/ngram", copy, number, np.arange(3))
        if is_ngram < self.ngrams:
            length = min(1 + int(of_length * self.longest), len(words))
            place = int(of_place * (len(words) - length + 1))
            return "".join(words[place : place + length]).strip()
        is_masked = uniform(self.seed, f"{stream}/mask", copy, number, np.arange(len(words))) < self.mask
        # Replace only the word itself: its white space and all other words keep their spelling.
        return "".join(word.replace(word.strip(), MASK) if masked else word for word, masked in zip(words, is_masked))

    def variants(self, texts: Sequence[Sequence[str]]) -> list[list[str]]:
        """Return the distinct variants of all records, excluding the records themselves.

        A record has one text or several. For a pair, successive variants change the first text, the second, then both
        (Tang et al., 2019).
        """
        variants: list[list[str]] = []
        seen = {tuple(" ".join(text.split()) for text in record) for record in texts} | {tuple(each) for each in texts}
        for number, record in enumerate(texts):
            for copy in range(self.copies):
                only = copy % (len(record) + 1) if len(record) > 1 else len(record)
                changed = tuple(
                    self.variant(text, number, copy, column) if only in (column, len(record)) else text
                    for column, text in enumerate(record)
                )
                if changed not in seen:
                    seen.add(changed)
                    variants.append(list(changed))
        return variants

    def candidate(self, number: int, place: int, count: int) -> int:
        """Return the index, in [0, count), of the candidate that fills the [MASK] at `place` in variant `number`."""
        return int(bits(self.seed, "augmentation/fill", 0, number, place)) % count
