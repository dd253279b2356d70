r"""Properties of characters that differ between scripts: sentence ends, scripts without spaces, marks, letter case.

Everything that reads text asks this module: splitter, words of masking, pre-tokenizers, filters, augmentation, reports.
The tables follow Unicode 14.0, the version of Python 3.11, with two additions that are named where they are made.
Sources: PropList.txt (Sentence_Terminal), LineBreak.txt (class SA), Scripts.txt, UAX #29 and UTR #36 of unicode.org.
"""

import codecs
import functools
import re
import unicodedata

import numpy as np

# Marks after which a sentence may also go on, so that a space and no lower-case letter must follow. U+2026 is not a
# Sentence_Terminal, but it ends sentences in most languages.
COMMON_TERMINALS = ".!?\u2026"
RARE_TERMINALS = "\u203c\u203d\u2047\u2048\u2049\u2e2e\u2e3c\u2e53\u2e54"
# Forms of the full stop that are also decimal points and parts of addresses.
WIDE_FULL_STOPS = "\ufe52\uff0e"
# The rest of Sentence_Terminal. They only end sentences, and no space need follow: the marks of Armenian, Arabic and
# Urdu, Syriac, Burmese, Ethiopic, Chinese and Japanese, the danda and double danda (U+0964, U+0965) of Hindi, Bengali
# and their neighbors, and so on. Khmer (U+17D4, U+17D5) is Sentence_Terminal since Unicode 16, Tibetan (U+0F0D, U+0F0E)
# is not.
SURE_TERMINALS = (
    "\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u0f0d\u0f0e\u104a\u104b\u1362"
    "\u1367\u1368\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d"
    "\u1b7e\u1c3b\u1c3c\u1c7e\u1c7f\u3002\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9"
    "\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe56\ufe57\uff01\uff1f\uff61\U00010a56\U00010a57\U00010f55-\U00010f59"
    "\U00010f86-\U00010f89\U00011047\U00011048\U000110be-\U000110c1\U00011141-\U00011143\U000111c5\U000111c6\U000111cd"
    "\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c\U000112a9\U0001144b\U0001144c\U000115c2\U000115c3"
    "\U000115c9-\U000115d7\U00011641\U00011642\U0001173c-\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b"
    "\U00011a9c\U00011c41\U00011c42\U00011ef7\U00011ef8\U00016a6e\U00016a6f\U00016af5\U00016b37\U00016b38\U00016b44"
    "\U00016e98\U0001bc9f\U0001da88"
)
# Greek asks with a semicolon (U+037E is canonically equal to it), so it is a terminal only after a Greek letter.
GREEK = "\u0370-\u03ff\u1f00-\u1fff"
GREEK_QUESTION_MARKS = ";\u037e"
# Two Ethiopic word separators in a row are how many keyboards write the full stop U+1362.
ETHIOPIC_FULL_STOP = "\u1361\u1361"
# The inside of a class of characters of a regular expression: all but the common ones, and all.
OTHER_TERMINALS = RARE_TERMINALS + WIDE_FULL_STOPS + SURE_TERMINALS
TERMINALS = COMMON_TERMINALS + OTHER_TERMINALS
# Thai and Lao end a sentence with a space.
ENDED_BY_SPACE = "\u0e01-\u0e4e\u0e81-\u0ecd\u0edc-\u0edf"

# Scripts that write words without a space between them: Thai, Lao, Tibetan, Burmese, Khmer, the Tai scripts and Ahom
# (class SA of UAX #14, Tibetan added), bopomofo, kana, and Chinese characters with their compatibility forms.
WITHOUT_SPACES = (
    (0x0E00, 0x0EFF),
    (0x0F00, 0x0FFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x1950, 0x19DF),
    (0x1A20, 0x1AAF),
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3040, 0x312F),
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FF),
    (0xAA60, 0xAADF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x11700, 0x1174F),
    (0x1AFF0, 0x1B16F),
    (0x20000, 0x323AF),
)
# Tibetan has no spaces between words either, but a mark (U+0F0B) between syllables.
SYLLABIC = ((0x0F00, 0x0FFF),)
_UNSPACED = "".join(f"{chr(first)}-{chr(last)}" for first, last in WITHOUT_SPACES)
# A character of such a script with its marks and the punctuation after it, or a run between white space. Combining
# marks are no word characters (\w) of Python's regular expressions.
_WORD = re.compile(rf"[{_UNSPACED}][^\w\s]*|[^\s{_UNSPACED}]+")
_SPACED_WORD = re.compile(rf"(?:{_WORD.pattern})\s*")
# Letters and digits that join the character before them: the vowels am of Thai and Lao are SpacingMark in UAX #29.
_JOINING = "\u0e33\u0eb3"
_ZERO_WIDTH_JOINERS = "\u200c\u200d"
_CONTINUING_BYTES = bytes(range(0x80, 0xC0))
# No plane of Unicode from here on has letters or punctuation.
_END_OF_TEXT = 0x40000
# Every letter of these has a lower case in Python, but no text mixes the two: Georgian has no capital letters.
_GEORGIAN = ((0x10D0, 0x10FF), (0x2D00, 0x2D2F))


class Characters:
    """A set of characters, written like the inside of a class of a regular expression, of which `are_in` finds any.

    A regular expression compares the ranges of a large set one by one, for as long as SentencePiece takes to encode the
    text. Looking up each UTF-16 unit in a table is 5 to 20 times as fast, if the text is longer than a sentence.
    """

    def __init__(self, characters: str):
        self.pattern = re.compile(f"[{characters}]")

    def are_in(self, text: str) -> bool:
        """Return whether a text has one of the characters."""
        if text.isascii():
            return False
        units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), np.uint16)
        # The first unit of a pair stands for 1,024 characters, so what is found is looked at.
        return bool(self._starts[units].any()) and bool(self.pattern.search(text))

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        """Return whether each UTF-16 unit is one of the characters, or the first unit of one; bool [65536]."""
        starts = np.zeros(1 << 16, bool)
        for first, stop, size in ((0, 1 << 16, 1), (1 << 16, _END_OF_TEXT, 2)):
            characters = "".join(self.pattern.findall("".join(map(chr, range(first, stop)))))
            starts[np.frombuffer(characters.encode("utf-16-le", "surrogatepass"), np.uint16)[::size]] = True
        return starts


UNSPACED = Characters(_UNSPACED)


def is_mark(character: str) -> bool:
    """Return whether a character is drawn onto the one before it: combining marks, joiners, and two Lao-Thai vowels."""
    return unicodedata.category(character)[0] == "M" or character in _JOINING or character in _ZERO_WIDTH_JOINERS


def is_lower(character: str) -> bool:
    """Return whether a character is a lower-case letter of a script that starts sentences with capital letters."""
    return character.islower() and not _is_in(character, _GEORGIAN)


def has_unspaced(text: str) -> bool:
    """Return whether a text has a character of a script that does not separate words."""
    return not text.isascii() and bool(UNSPACED.pattern.search(text))


def is_unspaced(character: str) -> bool:
    """Return whether a letter, mark or digit is of a script that does not separate words."""
    return _is_in(character, WITHOUT_SPACES) and unicodedata.category(character)[0] in "LMN"


def starts_unspaced(text: str) -> bool:
    """Return whether a piece of text starts a unit of masking, because its script does not separate words.

    Marks at its start belong to a letter of the piece before.
    """
    letter = _first_letter(text)
    return bool(letter) and is_unspaced(letter)


def byte_starts_unspaced(utf8: bytes) -> bool:
    """Return the same for the bytes of a piece, which may start and end within a character.

    Of a character that is cut, the first two bytes decide, and of kana and Chinese characters (U+3000 to U+9FFF) the
    first byte, 0xE3 to 0xE9.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    if letter := _first_letter(decoder.decode(utf8.lstrip(_CONTINUING_BYTES))):
        return is_unspaced(letter)
    cut, _ = decoder.getstate()
    if len(cut) < 2:
        return bool(cut) and 0xE3 <= cut[0] <= 0xE9
    missing = 1 + (cut[0] >= 0xE0) + (cut[0] >= 0xF0) + 1 - len(cut)
    ends = ((cut + bytes([last]) * missing).decode(errors="replace") for last in (0x80, 0xBF))
    return all(len(end) == 1 and _is_in(end, WITHOUT_SPACES) for end in ends)


def _first_letter(text: str) -> str:
    return next((character for character in text if not is_mark(character)), "")


def words(text: str) -> list[str]:
    """Return the words of a text: what white space separates, and each character of a script without spaces.

    Such a character has its marks and the punctuation after it.
    """
    return _WORD.findall(text) if has_unspaced(text) else text.split()


def count_words(sentences: list[str]) -> list[int]:
    """Return the number of `words` of each sentence; their only white space is single spaces between words."""
    if not UNSPACED.are_in("".join(sentences)):
        return [1 + sentence.count(" ") for sentence in sentences]
    return [len(_WORD.findall(text)) if has_unspaced(text) else 1 + text.count(" ") for text in sentences]


def spaced_words(text: str) -> list[str]:
    """Return `words` with the white space after each, the first also with that before it; joined, they are the text."""
    spaced = _SPACED_WORD.findall(text)
    return [text[: len(text) - len(text.lstrip())] + spaced[0], *spaced[1:]] if spaced else []


def _is_in(character: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    code = ord(character)
    return any(first <= code <= last for first, last in ranges)
