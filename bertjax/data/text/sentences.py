"""Sentence splitting: at line ends, or also at Unicode's sentence terminals.

Rules for abbreviations, dates and list numbers cover English and Korean, with some for German, titles in other
languages, and single letters in Semitic and Indic scripts. Every character that is not white space is kept; runs of
white space become one space.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterator

from bertjax.data.text import unicode

# Between a stop and a space any of these closes: German closes with the mark that opens in English, and Danish with «.
CLOSERS = "\"'”’»“‘«‹›)]}」』】〉》）］"
OPENERS = "\"'“‘„‚«»‹›([{「『【〈《（［"
# Invisible characters may stand anywhere between a stop and the next sentence.
_CLOSERS, _OPENERS = re.escape(CLOSERS) + unicode.INVISIBLE, re.escape(OPENERS) + unicode.INVISIBLE
SURE = re.compile(rf"(?:[{unicode.SURE_TERMINALS}]|{unicode.ETHIOPIC_FULL_STOP}|::)\Z")
# All white space except the space itself and what `str.splitlines` splits at.
OTHER_SPACES = "\t\x1f\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u202f\u205f\u3000"
# The word before a full stop is searched within this many characters, which keeps very long lines linear in time.
WINDOW = 64
BETWEEN_WORDS = re.compile(r"[^\w.]+")

# No sentence ends with these: a name, a number or another noun follows. After the English and French ones: Spanish and
# Portuguese, Italian, German, Polish, Russian and Ukrainian, Vietnamese.
TITLES = frozenset(
    "mr mrs ms messrs mme mlle dr prof rev hon st jr gen col capt lt sgt maj gov sen rep vs viz cf "
    "sr sra sres srta dra dña sig dott bzw ul ул вул проф tp pgs ths".split()
)
GERMAN_AFTER_ORDINAL = re.compile(
    r"(?:Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember|Jahrhundert)\b"
)
BEFORE_NUMBER = frozenset("no nos p pp vol ch art sec fig ed ca стр рис jan feb aug sept oct nov dec".split())
ABBREVIATIONS = TITLES | BEFORE_NUMBER
INITIALS = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]|[A-HJ-Z]")
# German abbreviates with two or three single letters, each with a space after it: "z. B.", "d. h.", "v. Chr.".
LETTER_FOLLOWS, LETTER_PRECEDES = re.compile(r"[^\W\d_]\.|Chr\."), re.compile(r"\b[^\W\d_]\. \Z")
# Without capital letters nothing marks an initial, so from Hebrew and Arabic to the Indic scripts any single letter
# before a dot is taken for a title or an initial. The longer ones are Hindi's and Bengali's "Dr." and "Prof.". Thai and
# Lao end no sentence with a dot: it follows abbreviations, which have consonants only ("พ.ศ.", "10.30น.").
_CONSONANTS = "\u0e01-\u0e2e\u0e81-\u0eae"
ABBREVIATION = re.compile(
    rf"[{_OPENERS}]*(?:[\u05d0-\u0dff]|डॉ|डा|पं|प्रो|মো|ডা|অধ্যা|[\d.:]{{0,8}}[{_CONSONANTS}][{_CONSONANTS}.]{{0,9}})"
)
NUMBER = re.compile(r"\d+(?:\.\d+)*")
LIST_MARKER = re.compile(r"\d+(?:\.\d+)*|[A-Za-z]|[IVXLC]+|[ivxlc]+")
KOREAN_LIST_MARKERS = frozenset("가나다라마바사아자차카타파하ㄱㄴㄷㄹㅁㅂㅅㅇㅈㅊㅋㅌㅍㅎ")
# Korean verb endings that continue the sentence after a quotation ("..." 라고 말했다).
QUOTATIVE = re.compile(r"(?:이?라)?(?:고|는|며|면서) ")

# Fast path: most sentence ends need none of the rules below. A mark is certain before a capital letter, a digit or
# Hangul; a full stop also needs a word with two letters or more that is no abbreviation and does not end like a Roman
# numeral.
_BEGINS = rf"(?= [{_OPENERS}]*[A-Z0-9가-힣])"  # tested first, because most dots inside a sentence fail it
_NOT_ABBREVIATION = "".join(
    rf"(?<!\b(?i:{'|'.join(sorted(words))})\.)"  # all alternatives of a lookbehind must have one length
    for words in ({word for word in ABBREVIATIONS if len(word) == length} for length in range(2, 7))
    if words
)
CERTAIN = {
    ".": re.compile(
        rf"\.{_BEGINS}(?<=[^\W\d_][^\W\d_{_CONSONANTS}]\.)(?<![IVXLCivxlc][IVXLCivxlc]\.){_NOT_ABBREVIATION} "
    ),
    "!": re.compile(rf"!{_BEGINS} "),
    "?": re.compile(rf"\?{_BEGINS} "),
}
# Digits, Hangul and Hanja continue a date: "2014. 8. 14. 선고".
_CONTINUES_DATE = r"[\d\u1100-\u11ff\u3400-\u9fff\uac00-\ud7a3]"
CONTINUES_DATE = re.compile(_CONTINUES_DATE)
_NOT_DATE = "".join(rf"(?!(?<=[ \n]{digits}\.) {_CONTINUES_DATE})" for digits in (r"\d", r"\d\d", r"\d\d\d\d"))
# Stops that need the rules. The lookbehind anchors a match at the first mark in a run ("...."); otherwise each mark in
# a long run would be tried. One pattern per mark, because `re` searches a literal first character five times as fast as
# a character class. Most stops are rejected at once: they end a line.
DOUBTFUL = tuple(
    re.compile(rf"{mark}(?=[^\n]){no_date}(?<![.!?…].)[.!?…]*+[{_CLOSERS}]*+(?= )(?! [{_OPENERS}]*[a-z])")
    for mark, no_date in ((r"\.", _NOT_DATE), ("!", ""), (r"\?", ""), ("…", ""))
)
# All stops, for texts that have other marks than these four. Indic verses put their number between two dandas, Tibetan
# writes its mark twice with a space between, and French has a space before the closing guillemet.
_GREEK_QUESTION = rf"[{unicode.GREEK_QUESTION_MARKS}](?:(?<=[{unicode.GREEK}].)|(?<=[{unicode.GREEK}][\u0300-\u0345].))"
_COLONS = rf":(?:(?<=[{unicode.ARMENIAN}]:)|(?<=[{unicode.ETHIOPIC}]:):)"
_BARS = rf"\|(?<=[{unicode.INDIC}]\|)\|?"
# Stops only after a letter of their script; for use inside (?:...).
LETTER_AND_STOP = rf"{_GREEK_QUESTION}|{_COLONS}|{_BARS}"
STOP = re.compile(
    rf"(?:[{unicode.TERMINALS}]|{unicode.ETHIOPIC_FULL_STOP}|{LETTER_AND_STOP})[{unicode.TERMINALS}]*"
    rf"(?:(?<=[।॥]) ?\d{{1,4}} ?[।॥]+)?(?:(?<=[།༎]) ?[།༎]+)*[{_CLOSERS}]*(?: »(?=[ \n]|\Z))?"
)
# Cheap tests for stops that `DOUBTFUL` cannot find.
OTHER_STOPS = unicode.Characters(rf"{unicode.OTHER_TERMINALS}\u1361\u037e»")
_SEMICOLONS = _GREEK_QUESTION.replace(f"[{unicode.GREEK_QUESTION_MARKS}]", ";")
LETTER_AND_STOPS = tuple(re.compile(stop) for stop in (_SEMICOLONS, _COLONS, _BARS))
# Chinese and Japanese text from the web has ASCII marks, and no space after them. A dot there may join parts of a name.
_UNSPACED = unicode.UNSPACED
ASCII_BETWEEN_UNSPACED = re.compile(rf"[!?](?<=[{_UNSPACED}].)[!?]*[{_CLOSERS}]*(?=[{_UNSPACED}])")
# A space between two Thai or Lao sentences. Around shorter runs it separates names and numbers, or single words.
SPACE_OF_SENTENCE = re.compile(rf"(?<=[{unicode.ENDED_BY_SPACE}]{{10}}) (?=[{unicode.ENDED_BY_SPACE}]{{10}})")


def split(text: str, splitter: str) -> list[str]:
    """Split a document into sentences; none is blank.

    Args:
      splitter: `line` (each line is a sentence) or `punctuation` (a sentence also ends at its script's terminals,
        unless an abbreviation, initial, decimal, date or list number ends there; in Thai and Lao, at a space between
        two long runs of letters).
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
    if unicode.UNSPACED_CHARACTERS.are_in(text):
        text = SPACE_OF_SENTENCE.sub("\n", text)
    sentences, start = [], 0
    for end in _doubtful_ends(text):
        sentences += text[start:end].split("\n")
        start = end + (text[end] == " ")
    return sentences + text[start:].split("\n")


def _doubtful_ends(text: str) -> Iterator[int]:
    """Yield the offsets where a sentence ends inside a line, judging each stop by the rules."""
    has_others = not text.isascii() and (
        OTHER_STOPS.are_in(text) or any(stop.search(text) for stop in (*LETTER_AND_STOPS, ASCII_BETWEEN_UNSPACED))
    )
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
    """Return whether `stop`, which is not at the end of its line, ends the sentence that starts at `start`."""
    text, end = stop[0].rstrip(unicode.INVISIBLE), stop.end()
    mark = text.rstrip(CLOSERS + unicode.INVISIBLE + " ")
    if SURE.search(mark):
        return True
    # A wide full stop is also a decimal point, so it ends no sentence before a digit or a Latin letter.
    if mark[-1] in unicode.WIDE_FULL_STOPS:
        return not line[end].isalnum() or not unicodedata.normalize("NFKC", line[end]).isascii()
    if line[end] != " ":
        return bool(ASCII_BETWEEN_UNSPACED.match(line, stop.start()))
    following = line[end + 1 : end + WINDOW].lstrip(OPENERS + unicode.INVISIBLE)
    if text != mark:  # «Where?» — she asked.
        following = following.lstrip("—– ")
    if unicode.is_lower(following[:1]) or (mark != text and QUOTATIVE.match(following)):
        return False
    return text != "." or not _is_not_full_stop(line, start, stop.start(), following)


def _is_not_full_stop(line: str, start: int, end: int, following: str) -> bool:
    """Return whether the dot at `end` belongs to an abbreviation, initial, date or list number."""
    word = line[max(start, end - WINDOW) : end].rpartition(" ")[2]
    if ABBREVIATION.fullmatch(word):
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
