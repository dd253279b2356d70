"""Documents become sentences: rules for English and Korean, or one sentence a line.

Splitting never loses a character that is not white space; runs of white space become one space.
"""

import re

CLOSERS = "\"'”’»)]}」』】〉》）］"
OPENERS = "\"'“‘«([{「『【〈《（［"
_CLOSERS = re.escape(CLOSERS)
# A first mark of its own lets the search run at the speed of one set of characters.
STOP = re.compile(rf"[.!?…。！？][.!?…。！？]*[{_CLOSERS}]*")
WHERE_NO_SPACE_FOLLOWS = ("。", "！", "？")
# The stops that may end a sentence where none of those three marks is about. The look behind makes a match begin where
# its marks do, or a long run of marks would be tried from each of them.
CANDIDATE = re.compile(rf"[.!?…](?<![.!?…].)[.!?…]*+[{_CLOSERS}]*+(?= )(?! [{re.escape(OPENERS)}]*[a-z])")
# All white space but the single space and what `str.splitlines` takes for line ends.
UNEVEN = ("  ", *"\t\x1f\xa0\u1680", *map(chr, range(0x2000, 0x200B)), *"\u202f\u205f\u3000")
WHITE_RUN = re.compile(r"[^\S ]\s*| \s+")
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
# Digits and Hangul or Hanja go on with "2014. 8. 14. 선고".
GOES_ON_WITH_DATE = re.compile(r"[\d\u1100-\u11ff\u3400-\u9fff\uac00-\ud7a3]")
# What a Korean sentence adds after the quotation that it reports.
QUOTATIVE = re.compile(r"(?:이?라)?(?:고|는|며|면서)\s")


def split(text: str, splitter: str) -> list[str]:
    """Sentences of a document, none of them blank.

    Args:
      splitter: `line` (each line is a sentence) or `punctuation` (a sentence also ends at . ! ? … and their full-width
        forms, where no abbreviation, initial, decimal, date or list number ends).
    """
    lines = text.splitlines()
    if any(white in text for white in UNEVEN):
        lines = (WHITE_RUN.sub(" ", line) for line in lines)
    lines = (line.strip(" ") for line in lines)
    if splitter == "line":
        return [line for line in lines if line]
    stop = STOP if any(mark in text for mark in WHERE_NO_SPACE_FOLLOWS) else CANDIDATE
    return [sentence for line in lines if line for sentence in _sentences(line, stop)]


def _sentences(line: str, stop: re.Pattern[str]) -> list[str]:
    sentences, start = [], 0
    for match in stop.finditer(line):
        end = match.end()
        if end < len(line) and _ends(line, start, match):
            sentences.append(line[start:end])
            start = end + (line[end] == " ")
    if start < len(line):
        sentences.append(line[start:])
    return sentences


def _ends(line: str, start: int, stop: re.Match[str]) -> bool:
    """Whether the sentence that began at `start` ends with `stop`, something following in the line."""
    text, end = stop[0], stop.end()
    if text == "." and line[end] == " " and not line[end + 1].islower() and line[end + 1] not in OPENERS:
        # By far the most frequent case, a word that is none of those that `_is_no_full_stop` knows, decided at once.
        space = line.rfind(" ", start, end)
        word = line[max(start, space + 1) : end - 1]
        if space >= 0 and len(word) > 1 and word.isalpha() and word.lower() not in ABBREVIATIONS:
            return True
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
    word = BETWEEN_WORDS.split(line[max(start, end - WINDOW) : end])[-1]
    if word.lower() in TITLES or word in KOREAN_LIST_MARKERS or INITIALS.fullmatch(word):
        return True
    if word.lower() in BEFORE_NUMBER and following[:1].isdigit():
        return True
    if NUMBER.fullmatch(word) and GOES_ON_WITH_DATE.match(following):
        return True
    opens_sentence = end - start < WINDOW and not line[start : end - len(word)].strip(OPENERS)
    return opens_sentence and bool(LIST_MARKER.fullmatch(word))
