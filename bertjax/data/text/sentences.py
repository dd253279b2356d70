"""Splits documents into sentences at line ends, or also at the marks that end sentences in Unicode.

The rules that tell a full stop from an abbreviation, a date or a list number are those of English and Korean, with a
few of German. Every character that is not white space is kept; runs of white space become one space.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterator

from bertjax.data.text import unicode

# Between a stop and a space, each of them closes: German closes with the mark that opens in English, and Danish with «.
CLOSERS = "\"'”’»“‘«‹›)]}」』】〉》）］"
OPENERS = "\"'“‘„‚«»‹›([{「『【〈《（［"
_CLOSERS, _OPENERS = re.escape(CLOSERS), re.escape(OPENERS)
SURE = re.compile(rf"(?:[{unicode.SURE_TERMINALS}]|{unicode.ETHIOPIC_FULL_STOP})\Z")
# All white space except the space and the line ends of `str.splitlines`.
OTHER_SPACES = "\t\x1f\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u202f\u205f\u3000"
# How many characters before a full stop are searched for its word, so that time is linear in very long lines.
WINDOW = 64
BETWEEN_WORDS = re.compile(r"[^\w.]+")

TITLES = frozenset(
    "mr mrs ms messrs mme mlle dr prof rev hon st jr gen col capt lt sgt maj gov sen rep vs viz cf".split()
)
GERMAN_AFTER_ORDINAL = re.compile(
    r"(?:Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember|Jahrhundert)\b"
)
BEFORE_NUMBER = frozenset("no nos p pp vol ch art sec fig ed jan feb aug sept oct nov dec".split())
ABBREVIATIONS = TITLES | BEFORE_NUMBER
INITIALS = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]|[A-HJ-Z]")
# German abbreviates with two or three single letters, each with a space after it: "z. B.", "d. h.", "v. Chr.".
LETTER_FOLLOWS, LETTER_PRECEDES = re.compile(r"[^\W\d_]\.|Chr\."), re.compile(r"\b[^\W\d_]\. \Z")
# In scripts without capital letters, from Hebrew and Arabic to those of India, single letters are titles or initials.
# The others are Dr. and Prof. of Hindi and Bengali.
SINGLE_LETTER = re.compile(rf"[{_OPENERS}]*(?:[\u05d0-\u0dff]|डॉ|डा|पं|प्रो|মো|ডা|অধ্যা)")
NUMBER = re.compile(r"\d+(?:\.\d+)*")
LIST_MARKER = re.compile(r"\d+(?:\.\d+)*|[A-Za-z]|[IVXLC]+|[ivxlc]+")
KOREAN_LIST_MARKERS = frozenset("가나다라마바사아자차카타파하ㄱㄴㄷㄹㅁㅂㅅㅇㅈㅊㅋㅌㅍㅎ")
# Endings that a Korean sentence adds after a quotation.
QUOTATIVE = re.compile(r"(?:이?라)?(?:고|는|며|면서) ")

# Most sentence ends need none of the rules below; these regular expressions find them: a mark before a capital letter,
# a digit or Hangul, and before a full stop a word of at least two letters that is neither an abbreviation nor, by its
# last two letters, a Roman number.
_BEGINS = rf"(?= [{_OPENERS}]*[A-Z0-9가-힣])"  # tested first, because most stops inside of a sentence fail it
_NOT_ABBREVIATION = "".join(
    rf"(?<!\b(?i:{'|'.join(sorted(words))})\.)"  # all alternatives of a lookbehind must have one length
    for words in ({word for word in ABBREVIATIONS if len(word) == length} for length in range(2, 7))
    if words
)
CERTAIN = {
    ".": re.compile(rf"\.{_BEGINS}(?<=[^\W\d_][^\W\d_]\.)(?<![IVXLCivxlc][IVXLCivxlc]\.){_NOT_ABBREVIATION} "),
    "!": re.compile(rf"!{_BEGINS} "),
    "?": re.compile(rf"\?{_BEGINS} "),
}
# Digits and Hangul or Hanja continue a date: "2014. 8. 14. 선고".
_CONTINUES_DATE = r"[\d\u1100-\u11ff\u3400-\u9fff\uac00-\ud7a3]"
CONTINUES_DATE = re.compile(_CONTINUES_DATE)
_NOT_DATE = "".join(rf"(?!(?<=[ \n]{digits}\.) {_CONTINUES_DATE})" for digits in (r"\d", r"\d\d", r"\d\d\d\d"))
# The other stops that may end a sentence. The lookbehind makes a match start at the first of its marks; otherwise a
# long run of marks would be tried from each of them. A pattern that starts with one character is searched five times as
# fast as a set of characters. Most stops are rejected at once, because a line ends with them.
DOUBTFUL = tuple(
    re.compile(rf"{mark}(?=[^\n]){no_date}(?<![.!?…].)[.!?…]*+[{_CLOSERS}]*+(?= )(?! [{_OPENERS}]*[a-z])")
    for mark, no_date in ((r"\.", _NOT_DATE), ("!", ""), (r"\?", ""), ("…", ""))
)
# All stops, for a text with other marks than these four. Verses in Indic scripts have their number between two dandas,
# and Tibetan writes its mark twice, with a space between. French has a space before its closing quotation mark.
_GREEK_QUESTION = rf"[{unicode.GREEK_QUESTION_MARKS}](?:(?<=[{unicode.GREEK}].)|(?<=[{unicode.GREEK}][\u0300-\u0345].))"
STOP = re.compile(
    rf"(?:[{unicode.TERMINALS}]|{unicode.ETHIOPIC_FULL_STOP}|{_GREEK_QUESTION})[{unicode.TERMINALS}]*"
    rf"(?:(?<=[।॥]) ?\d{{1,4}} ?[।॥]+)?(?:(?<=[།༎]) ?[།༎]+)*[{_CLOSERS}]*(?: »(?=[ \n]|\Z))?"
)
# Whether a text may have a stop that `DOUBTFUL` does not find.
OTHER_STOPS = unicode.Characters(rf"{unicode.OTHER_TERMINALS}\u1361\u037e»")
GREEK_SEMICOLON = re.compile(_GREEK_QUESTION.replace(f"[{unicode.GREEK_QUESTION_MARKS}]", ";"))
# A space between two Thai or Lao sentences. Shorter runs are names and numbers, or words of a text with spaces.
SPACE_OF_SENTENCE = re.compile(rf"(?<=[{unicode.ENDED_BY_SPACE}]{{10}}) (?=[{unicode.ENDED_BY_SPACE}]{{10}})")


def split(text: str, splitter: str) -> list[str]:
    """Return the sentences of a document, none of them blank.

    Args:
      splitter: `line` (each line is a sentence) or `punctuation` (a sentence also ends at the marks that end sentences
        in its script, unless an abbreviation, initial, decimal, date or list number ends there; in Thai and Lao, at a
        space between two long runs of letters).
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
    if unicode.UNSPACED.are_in(text):
        text = SPACE_OF_SENTENCE.sub("\n", text)
    sentences, start = [], 0
    for end in _doubtful_ends(text):
        sentences += text[start:end].split("\n")
        start = end + (text[end] == " ")
    return sentences + text[start:].split("\n")


def _doubtful_ends(text: str) -> Iterator[int]:
    """Yield the places where sentences end before the end of their line, at stops that need the rules."""
    has_others = not text.isascii() and (OTHER_STOPS.are_in(text) or GREEK_SEMICOLON.search(text))
    stops = (STOP,) if has_others else DOUBTFUL
    start = 0
    for stop in sorted(itertools.chain.from_iterable(stop.finditer(text) for stop in stops), key=re.Match.start):
        end = stop.end()
        # The rules do not look further back than WINDOW characters.
        start = max(start, text.rfind("\n", max(start, stop.start() - WINDOW), end) + 1)
        if text[end : end + 1] not in ("", "\n") and _ends(text, start, stop):
            yield end
            start = end + (text[end] == " ")


def _ends(line: str, start: int, stop: re.Match[str]) -> bool:
    """Return whether the sentence from `start` ends with `stop`, which is not the end of its line."""
    text, end = stop[0], stop.end()
    mark = text.rstrip(CLOSERS + " ")
    if SURE.search(mark):
        return True
    if mark[-1] in unicode.WIDE_FULL_STOPS:
        return not line[end].isalnum() or not unicodedata.normalize("NFKC", line[end]).isascii()
    if line[end] != " ":
        return False
    following = line[end + 1 : end + WINDOW].lstrip(OPENERS)
    if text != mark:  # «Where?» — she asked.
        following = following.lstrip("—– ")
    if unicode.is_lower(following[:1]) or (mark != text and QUOTATIVE.match(following)):
        return False
    return text != "." or not _is_not_full_stop(line, start, stop.start(), following)


def _is_not_full_stop(line: str, start: int, end: int, following: str) -> bool:
    """Return whether the dot at `end` belongs to an abbreviation, an initial, a date or a list number."""
    word = line[max(start, end - WINDOW) : end].rpartition(" ")[2]
    if SINGLE_LETTER.fullmatch(word):
        return True
    if not word.isalnum():
        word = BETWEEN_WORDS.split(word)[-1]
    lower = word.lower()
    if lower in TITLES or word in KOREAN_LIST_MARKERS or INITIALS.fullmatch(word):
        return True
    if lower in BEFORE_NUMBER and following[:1].isdigit():
        return True
    if NUMBER.fullmatch(word) and (CONTINUES_DATE.match(following) or GERMAN_AFTER_ORDINAL.match(following)):
        return True
    before = line[max(start, end - WINDOW) : end - len(word)]
    if len(word) == 1 and word.islower() and (LETTER_FOLLOWS.match(following) or LETTER_PRECEDES.search(before)):
        return True
    opens_sentence = end - start < WINDOW and not line[start : end - len(word)].strip(OPENERS)
    return opens_sentence and bool(LIST_MARKER.fullmatch(word))
