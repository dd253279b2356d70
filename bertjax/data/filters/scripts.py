"""Filter by writing system and by symbol share, from Unicode character names; no model needed."""

import collections
import dataclasses
import difflib
import functools
import sys
import unicodedata

from bertjax.data.filters import Filter
from bertjax.data.sources import Document
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import Allowed, setting


@dataclasses.dataclass(frozen=True)
class Scripts(Filter):
    """Keeps documents by their letters' scripts and by their shares of symbols and letters.

    A script is named by the first word in its letters' Unicode names: `latin`, `hangul`, `cjk` (Chinese characters),
    `hiragana`, `cyrillic`, `arabic`. Compatibility forms count as the character they stand for (NFKC).

    Attributes:
      at_least: {script: minimum share of letters}.
      at_most: {script: maximum share of letters}.
      most_symbols: maximum share of symbols (not letters, digits or punctuation) among all characters except marks and
        white space.
      fewest_letters: minimum share of letters among the same characters. A mark is part of its letter: half of Burmese
        and 40% of Hindi are marks.
    """

    kind: str = dataclasses.field(default="scripts", init=False)
    at_least: dict[str, float] = dataclasses.field(default_factory=dict)
    at_most: dict[str, float] = dataclasses.field(default_factory=dict)
    most_symbols: float = setting(1.0, least=0, most=1)
    fewest_letters: float = setting(0.0, least=0, most=1)

    def __post_init__(self):
        super().__post_init__()
        shares = {f"at_least.{name}": share for name, share in self.at_least.items()}
        shares |= {f"at_most.{name}": share for name, share in self.at_most.items()}
        for name, share in shares.items():
            Allowed(least=0, most=1).check(name, share, f" of the filter {self.kind!r}")
        for script in (*self.at_least, *self.at_most):
            if script not in _known():
                name = _UNICODE_NAMES.get(script.lower(), script.lower())
                near = difflib.get_close_matches(name, _known(), n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else "names are such as latin, hangul, cjk, cyrillic"
                raise UserError(f"the filter 'scripts' knows no script {script!r}; {hint}")
        if not shares and self.most_symbols == 1 and self.fewest_letters == 0:
            raise UserError("the filter 'scripts' has no limit; set at_least, at_most, most_symbols or fewest_letters")

    def keep(self, document: Document) -> str | None:
        # Count distinct characters first: there are few, and each needs a look-up of its name.
        kinds: collections.Counter[str] = collections.Counter()
        for character, number in collections.Counter(unicodedata.normalize("NFKC", document.text)).items():
            if unicodedata.category(character)[0] != "M":
                kinds[kind_of(character)] += number
        symbols, others, _ = (kinds.pop(name, 0) for name in ("SYMBOL", "OTHER", "SPACE"))
        letters = sum(kinds.values())
        characters = max(1, letters + symbols + others)
        if symbols > self.most_symbols * characters:
            return f"more than {self.most_symbols:.0%} symbols"
        if letters < self.fewest_letters * characters:
            return f"less than {self.fewest_letters:.0%} letters"
        for script, share in self.at_least.items():
            if kinds[script] < share * max(1, letters):
                return f"less than {share:.0%} of the letters are {script}"
        for script, share in self.at_most.items():
            if kinds[script] > share * letters:
                return f"more than {share:.0%} of the letters are {script}"
        return None


# What people call scripts that have another name in Unicode.
_UNICODE_NAMES = dict.fromkeys(("han", "hanzi", "kanji", "hanja", "chinese"), "cjk") | {
    "korean": "hangul",
    "japanese": "hiragana",
    "kana": "hiragana",
    "burmese": "myanmar",
    "hindi": "devanagari",
    "russian": "cyrillic",
    "amharic": "ethiopic",
}
# First words in the names of letters that belong to no script, such as MODIFIER LETTER APOSTROPHE.
_NO_SCRIPTS = ("modifier", "caron", "space", "vedic", "turned", "roman", "vertical", "masu", "combining", "unnamed")


@functools.lru_cache(maxsize=1 << 16)
def kind_of(character: str) -> str:
    """Return a letter's script, in lower case, or SPACE, SYMBOL or OTHER for other characters.

    A compatibility form has the script of the letter it stands for (NFKC): the micro sign is Greek, and the feminine
    ordinal indicator is Latin.
    """
    category = unicodedata.category(character)
    if category[0] == "L":
        stands_for = next(filter(str.isalpha, unicodedata.normalize("NFKC", character)), character)
        script = unicodedata.name(stands_for, "unnamed").split()[0].partition("-")[0].lower()
        return "OTHER" if script in _NO_SCRIPTS else "cjk" if script == "ideographic" else script
    if character.isspace():
        return "SPACE"
    return "SYMBOL" if category[0] == "S" else "OTHER"


@functools.cache
def _known() -> frozenset[str]:
    """Return all script names."""
    characters = map(chr, range(sys.maxunicode + 1))
    letters = (character for character in characters if unicodedata.category(character)[0] == "L")
    return frozenset(map(kind_of.__wrapped__, letters)) - {"OTHER"}
