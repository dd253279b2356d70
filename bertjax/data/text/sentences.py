"""Documents become sentences: rules for English and Korean, or one sentence a line.

Splitting never loses a character that is not white space; runs of white space become one space.
"""

import itertools
import re
from collections.abc import Iterator

CLOSERS = "\"'”’»)]}」』】〉》）］"
OPENERS = "\"'“‘«([{「『【〈《（［"
_CLOSERS, _OPENERS = re.escape(CLOSERS), re.escape(OPENERS)
WHERE_NO_SPACE_FOLLOWS = ("。", "！", "？")
# All white space but the space and what `str.splitlines` takes for line ends.
OTHER_SPACES = "\t\x1f\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u202f\u205f\u3000"
# How far back the word before a full stop is looked for: keeps a line of ten million characters linear.
WINDOW = 64
BETWEEN_WORDS = re.compile(r"[^\w.]+")

TITLES = frozenset(
    "mr mrs ms messrs mme mlle dr prof rev hon st jr gen col capt lt sgt maj gov sen rep vs viz cf".split()
)
BEFORE_NUMBER = frozenset("no nos p pp vol ch art sec fig ed jan feb aug sept oct nov dec".split())
ABBREVIATIONS = TITLES | BEFORE_NUMBER
INITIALS = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]|[A-HJ-Z]")
NUMBER = re.compile(r"\d+(?:\.\d+)*")
LIST_MARKER = re.compile(r"\d+(?:\.\d+)*|[A-Za-z]|[IVXLC]+|[ivxlc]+")
KOREAN_LIST_MARKERS = frozenset("가나다라마바사아자차카타파하ㄱㄴㄷㄹㅁㅂㅅㅇㅈㅊㅋㅌㅍㅎ")
# What a Korean sentence adds after the quotation that it reports.
QUOTATIVE = re.compile(r"(?:이?라)?(?:고|는|며|면서) ")

# By far the most sentences end where none of the rules below has a say, and regular expressions alone find those ends:
# a mark before a capital letter, a digit or Hangul, and before a full stop a word of two letters at least that is
# neither an abbreviation nor, by its last two letters, a Roman number.
_BEGINS = rf"(?= [{_OPENERS}]*[A-Z0-9가-힣])"  # asked first, as most stops within a sentence fail it
_NO_ABBREVIATION = "".join(
    rf"(?<!\b(?i:{'|'.join(sorted(words))})\.)"  # all that a look behind tries must be of one length
    for words in ({word for word in ABBREVIATIONS if len(word) == length} for length in range(2, 7))
    if words
)
CERTAIN = {
    ".": re.compile(rf"\.{_BEGINS}(?<=[^\W\d_][^\W\d_]\.)(?<![IVXLCivxlc][IVXLCivxlc]\.){_NO_ABBREVIATION} "),
    "!": re.compile(rf"!{_BEGINS} "),
    "?": re.compile(rf"\?{_BEGINS} "),
}
# Digits and Hangul or Hanja go on with "2014. 8. 14. 선고".
_GOES_ON_WITH_DATE = r"[\d\u1100-\u11ff\u3400-\u9fff\uac00-\ud7a3]"
GOES_ON_WITH_DATE = re.compile(_GOES_ON_WITH_DATE)
_NO_DATE = "".join(rf"(?!(?<=[ \n]{digits}\.) {_GOES_ON_WITH_DATE})" for digits in (r"\d", r"\d\d", r"\d\d\d\d"))
# The other stops that may end a sentence. The look behind makes a match begin where its marks do, or a long run of
# marks would be tried from each of them. What begins with one character is searched for five times as fast as a set,
# and most stops are left at once, since a line ends with them.
DOUBTFUL = tuple(
    re.compile(rf"{mark}(?=[^\n]){no_date}(?<![.!?…].)[.!?…]*+[{_CLOSERS}]*+(?= )(?! [{_OPENERS}]*[a-z])")
    for mark, no_date in ((r"\.", _NO_DATE), ("!", ""), (r"\?", ""), ("…", ""))
)
# All of them in a text with marks that no space need follow.
STOP = re.compile(rf"[.!?…。！？][.!?…。！？]*[{_CLOSERS}]*")


def split(text: str, splitter: str) -> list[str]:
    """Sentences of a document, none of them blank.

    Args:
      splitter: `line` (each line is a sentence) or `punctuation` (a sentence also ends at . ! ? … and their full-width
        forms, where no abbreviation, initial, decimal, date or list number ends).
    """
    for other in OTHER_SPACES:
        text = text.replace(other, " ")
    while "  " in text:
        text = text.replace("  ", " ")
    lines = [line for line in (line.strip(" ") for line in text.splitlines()) if line]
    if splitter == "line" or not lines:
        return lines
    text = "\n".join(lines)
    for mark, certain in CERTAIN.items():
        text = certain.sub(mark + "\n", text)
    sentences, start = [], 0
    for end in _ends_of_doubt(text):
        sentences += text[start:end].split("\n")
        start = end + (text[end] == " ")
    return sentences + text[start:].split("\n")


def _ends_of_doubt(text: str) -> Iterator[int]:
    """Where sentences end before the end of their line."""
    stops = (STOP,) if any(mark in text for mark in WHERE_NO_SPACE_FOLLOWS) else DOUBTFUL
    start = 0
    for stop in sorted(itertools.chain.from_iterable(stop.finditer(text) for stop in stops), key=re.Match.start):
        end = stop.end()
        # Where the line begins further back, no rule looks at it.
        start = max(start, text.rfind("\n", max(start, stop.start() - WINDOW), end) + 1)
        if text[end : end + 1] not in ("", "\n") and _ends(text, start, stop):
            yield end
            start = end + (text[end] == " ")


def _ends(line: str, start: int, stop: re.Match[str]) -> bool:
    """Whether the sentence that began at `start` ends with `stop`, something following in the line."""
    text, end = stop[0], stop.end()
    mark = text.rstrip(CLOSERS)
    if mark.endswith(WHERE_NO_SPACE_FOLLOWS):
        return True
    if line[end] != " ":
        return False
    following = line[end + 1 : end + WINDOW].lstrip(OPENERS)
    if following[:1].islower() or (mark != text and QUOTATIVE.match(following)):
        return False
    return text != "." or not _is_no_full_stop(line, start, stop.start(), following)


def _is_no_full_stop(line: str, start: int, end: int, following: str) -> bool:
    """Whether the dot at `end` belongs to an abbreviation, an initial, a date or a list number."""
    word = line[max(start, end - WINDOW) : end].rpartition(" ")[2]
    if not word.isalnum():
        word = BETWEEN_WORDS.split(word)[-1]
    lower = word.lower()
    if lower in TITLES or word in KOREAN_LIST_MARKERS or INITIALS.fullmatch(word):
        return True
    if lower in BEFORE_NUMBER and following[:1].isdigit():
        return True
    if NUMBER.fullmatch(word) and GOES_ON_WITH_DATE.match(following):
        return True
    opens_sentence = end - start < WINDOW and not line[start : end - len(word)].strip(OPENERS)
    return opens_sentence and bool(LIST_MARKER.fullmatch(word))
