"""C4's rules for lines and pages (Raffel et al. 2020, arXiv 1910.10683, section 2.2)."""

import dataclasses
import re

from bertjax.data.filters import Filter
from bertjax.data.sources import Document
from bertjax.data.text import unicode
from bertjax.data.text.sentences import LETTER_AND_STOP, split
from bertjax.runtime.setting import setting

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
# C4's "terminal punctuation mark": any script's sentence terminal, or a closing quotation mark. Thai and Lao have no
# such mark, so their letters count as one and no line is dropped for its end.
_END = re.compile(
    rf"(?:[{unicode.TERMINALS}\"\u201d\u00bb\u300d\u300f{unicode.ENDED_BY_SPACE}]|"
    rf"{LETTER_AND_STOP}|{unicode.ETHIOPIC_FULL_STOP})[{unicode.INVISIBLE}]*\Z"
)
_ELLIPSIS = ("...", "\u2026")
_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
LONGEST_WORD = 1000


@dataclasses.dataclass(frozen=True)
class C4(Filter):
    """Removes lines that are not sentences, and drops pages with few sentences, `lorem ipsum` or code.

    Thresholds follow the published code (tensorflow/datasets, `text/c4_utils.py`). Two rules are not applied: the list
    of bad words, and the removal of repeated three-sentence spans.

    Attributes:
      fewest_sentences: minimum sentences per page, after lines were removed.
      fewest_words: minimum words per line; in scripts without spaces each character counts as a word.
    """

    kind: str = dataclasses.field(default="c4", init=False)
    fewest_sentences: int = setting(5, least=0)
    fewest_words: int = setting(3, least=0)

    def rewrite(self, text: str) -> tuple[str, int]:
        """Remove citation marks and bad lines; also return how many marks and lines were removed."""
        lines, changes = [], 0
        for line in text.split("\n"):
            line, citations = _CITATION.subn("", line)
            changes += citations
            if not line.strip() or self._is_sentence(line.strip()):
                lines.append(line)
            else:
                changes += 1
        return ("\n".join(lines).strip() if changes else text), changes

    def keep(self, document: Document) -> str | None:
        lower = document.text.lower()
        if "lorem ipsum" in lower:
            return "lorem ipsum"
        if "{" in lower:  # many programming languages have it, and prose does not (section 2.2)
            return "curly bracket"
        if len(split(document.text, "punctuation")) < self.fewest_sentences:
            return f"fewer than {self.fewest_sentences} sentences"
        return None

    def _is_sentence(self, line: str) -> bool:
        words, lower = unicode.words(line), line.lower()
        return (
            bool(_END.search(line))
            and not line.endswith(_ELLIPSIS)
            and len(words) >= self.fewest_words
            and max(map(len, words)) <= LONGEST_WORD
            and "javascript" not in lower
            and not any(policy in lower for policy in _POLICIES)
        )
