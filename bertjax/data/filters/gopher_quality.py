"""Gopher's quality rules (Rae et al. 2021, arXiv 2112.11446, appendix A1.1, "Quality filtering")."""

import dataclasses
import re
import string

from bertjax.data.filters.base import Filter
from bertjax.data.sources import Document
from bertjax.data.text import unicode
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

_ELLIPSIS = ("...", "\u2026")
_BULLETS = ("\u2022", "\u2023", "\u25cf", "\u25e6", "\u2043", "*", "-")
_LETTER = re.compile(r"[^\W\d_]")
_PUNCTUATION = string.punctuation + "\u2018\u2019\u201c\u201d"


@dataclasses.dataclass(frozen=True)
class GopherQuality(Filter):
    """Keeps documents that look like prose, with the paper's thresholds.

    The paper does not define a word; here white space separates words, and in scripts without spaces each character is
    one. If most words are such characters, the mean word length is not tested. The stop words are English: for another
    language set `stop_words`, or `fewest_stop_words=0`.

    Attributes:
      fewest_words: minimum words.
      most_words: maximum words.
      shortest_mean_word: minimum mean word length, in characters.
      longest_mean_word: maximum mean word length, in characters.
      most_symbols: maximum number of `#`, and of ellipses, per word.
      most_bullets: maximum share of lines that start with a bullet.
      most_ellipses: maximum share of lines that end with an ellipsis.
      fewest_alphabetic: minimum share of words that contain a letter.
      fewest_stop_words: how many different stop words must occur.
      stop_words: the words of which `fewest_stop_words` must occur, in lower case.
    """

    kind: str = dataclasses.field(default="gopher_quality", init=False)
    fewest_words: int = setting(50, least=0)
    most_words: int = setting(100_000, least=0)
    shortest_mean_word: float = setting(3.0, least=0)
    longest_mean_word: float = setting(10.0, least=0)
    most_symbols: float = setting(0.1, least=0, most=1)
    most_bullets: float = setting(0.9, least=0, most=1)
    most_ellipses: float = setting(0.3, least=0, most=1)
    fewest_alphabetic: float = setting(0.8, least=0, most=1)
    fewest_stop_words: int = setting(2, least=0)
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")

    def __post_init__(self):
        super().__post_init__()
        if self.fewest_stop_words > len(set(self.stop_words)):
            raise UserError(
                f"fewest_stop_words={self.fewest_stop_words} of the filter {self.kind!r} exceeds its "
                f"{len(set(self.stop_words))} stop_words, so it would drop everything; lower it"
            )

    def keep(self, document: Document) -> str | None:
        words = unicode.words(document.text)
        if len(words) < self.fewest_words:
            return f"fewer than {self.fewest_words:,} words"
        if len(words) > self.most_words:
            return f"more than {self.most_words:,} words"
        if wrong := self._mean_word(words):
            return wrong
        most = self.most_symbols * len(words)
        if document.text.count("#") > most or sum(map(document.text.count, _ELLIPSIS)) > most:
            return f"more than {self.most_symbols:g} symbols a word"
        lines = [line.strip() for line in document.text.splitlines() if line.strip()]
        if sum(line.startswith(_BULLETS) for line in lines) > self.most_bullets * len(lines):
            return f"more than {self.most_bullets:.0%} of the lines start with a bullet"
        if sum(line.endswith(_ELLIPSIS) for line in lines) > self.most_ellipses * len(lines):
            return f"more than {self.most_ellipses:.0%} of the lines end with an ellipsis"
        if sum(map(bool, map(_LETTER.search, words))) < self.fewest_alphabetic * len(words):
            return f"less than {self.fewest_alphabetic:.0%} of the words hold a letter"
        if self.fewest_stop_words:
            present = {word.strip(_PUNCTUATION).lower() for word in words} & set(self.stop_words)
            if len(present) < self.fewest_stop_words:
                return f"fewer than {self.fewest_stop_words} stop words"
        return None

    def _mean_word(self, words: list[str]) -> str | None:
        """Return the reason to drop a document for its mean word length, or None."""
        spaced = [word for word in words if not unicode.is_unspaced(word[0])]
        if 2 * len(spaced) < len(words):
            return None
        mean = sum(map(len, spaced)) / max(1, len(spaced))
        if mean < self.shortest_mean_word:
            return f"mean word shorter than {self.shortest_mean_word:g}"
        if mean > self.longest_mean_word:
            return f"mean word longer than {self.longest_mean_word:g}"
        return None
