r"""Unicode properties that differ between scripts: sentence terminals, word separation, marks, letter case.

The only such tables: splitter, masking units, pre-tokenizers, filters, augmentation and reports all ask this module.
They follow Unicode 14.0, Python 3.11's version, with two additions that are named where they are made.
Sources at unicode.org: PropList.txt (Sentence_Terminal), LineBreak.txt (class SA), Scripts.txt, UAX #29, UTR #36.
"""

import codecs
import functools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

# Ambiguous marks: a sentence may continue after them, so a space must follow and no lower-case letter. U+2026 is not a
# Sentence_Terminal, but it ends sentences in most languages.
COMMON_TERMINALS = ".!?\u2026"
RARE_TERMINALS = "\u203c\u203d\u2047\u2048\u2049\u2e2e\u2e3c\u2e53\u2e54"
# Wide full stops, which also occur as decimal points and in addresses.
WIDE_FULL_STOPS = "\ufe52\uff0e"
# The rest of Sentence_Terminal: marks that do nothing else, so no space need follow. Armenian, Arabic and Urdu, Syriac,
# Burmese, Ethiopic, Chinese, Japanese, the danda and double danda (U+0964, U+0965) in Hindi, Bengali and their
# neighbors, and so on. Additions: Khmer (U+17D4, U+17D5), Sentence_Terminal since Unicode 16, and Tibetan (U+0F0D,
# U+0F0E), which is not.
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
# The Ethiopic word separator stands for a space; traditional text has it, with or without spaces. Many keyboards write
# the full stop U+1362 as two of them.
WORD_SEPARATOR = "\u1361"
ETHIOPIC_FULL_STOP = 2 * WORD_SEPARATOR
# ASCII signs in place of marks that keyboards lack: a colon for the Armenian full stop U+0589, two for the Ethiopic
# U+1362, and a vertical bar for the danda.
ARMENIAN, ETHIOPIC, INDIC = "\u0531-\u0587", "\u1200-\u135a", "\u0900-\u0dff"
# Characters without a glyph of their own: word processors and web pages put them beside punctuation, such as the
# right-to-left mark of Hebrew and Arabic, or the zero-width space.
INVISIBLE = "\u00ad\u061c\ufeff" + "".join(
    map(chr, (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070)))
)
# For use inside [...] in a regular expression: without the common ones, and all.
OTHER_TERMINALS = RARE_TERMINALS + WIDE_FULL_STOPS + SURE_TERMINALS
TERMINALS = COMMON_TERMINALS + OTHER_TERMINALS
# Thai and Lao end a sentence with a space.
ENDED_BY_SPACE = "\u0e01-\u0e4e\u0e81-\u0ecd\u0edc-\u0edf"

# Scripts without spaces between words: bopomofo, kana, and Chinese characters with their compatibility forms; and Thai,
# Lao, Burmese, Khmer, the Tai scripts and Ahom (class SA in UAX #14), and Tibetan.
EAST_ASIAN = (
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3040, 0x312F),
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x1AFF0, 0x1B16F),
    (0x20000, 0x323AF),
)
WITHOUT_SPACES = (
    (0x0E00, 0x0EFF),
    (0x0F00, 0x0FFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x1950, 0x19DF),
    (0x1A20, 0x1AAF),
    (0xA9E0, 0xA9FF),
    (0xAA60, 0xAADF),
    (0x11700, 0x1174F),
    *EAST_ASIAN,
)
# Tibetan has no spaces between words either, but it marks syllables (U+0F0B), so character n-grams are not needed.
SYLLABIC = ((0x0F00, 0x0FFF),)
# For use inside [...] in a regular expression.
UNSPACED, _EAST_ASIAN = (
    "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges) for ranges in (WITHOUT_SPACES, EAST_ASIAN)
)
_IN_UNSPACED, _IN_EAST_ASIAN = re.compile(f"[{UNSPACED}]"), re.compile(f"[{_EAST_ASIAN}]")
_WITHOUT_SPACES = re.compile(f"[{UNSPACED}{WORD_SEPARATOR}]")
# Letters that join the character before them, by UAX #29: "sara am" of Thai and Lao (SpacingMark), and the halfwidth
# voiced sound marks of kana (Grapheme_Extend).
_JOINING = "\u0e33\u0eb3\uff9e\uff9f"
# One such character with what joins it and the punctuation after it, or a run between white space. Python's \w excludes
# combining marks, so [^\w\s] covers marks as well as punctuation.
_WORD = re.compile(
    rf"[{UNSPACED}][^\w\s]*(?:[{_JOINING}][^\w\s]*)*"
    rf"|[^\s{UNSPACED}{WORD_SEPARATOR}]+{WORD_SEPARATOR}*|{WORD_SEPARATOR}+"
)
_SPACED_WORD = re.compile(rf"(?:{_WORD.pattern})\s*")
# Characters that spell one English word: the Universal Declaration of Human Rights takes 1.5 times as many characters
# as English words in Chinese, 2.2 in Japanese, and 3.5 to 4.3 in Burmese, Khmer, Tibetan, Thai and Lao.
_EAST_ASIAN_A_WORD, _OTHERS_A_WORD = 2, 4
_ZERO_WIDTH_JOINERS = "\u200c\u200d"
_CONTINUING_BYTES = bytes(range(0x80, 0xC0))
# No plane of Unicode from here on has letters or punctuation.
_END_OF_TEXT = 0x40000
# Python calls these letters lower-case, but Georgian text has no capital letters.
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


# The Ethiopic word separator stands where other scripts have a space.
UNSPACED_CHARACTERS = Characters(f"{UNSPACED}{WORD_SEPARATOR}")


def is_mark(character: str) -> bool:
    """Return whether a character attaches to the one before it: combining marks, joiners, and letters that join."""
    return unicodedata.category(character)[0] == "M" or character in _JOINING or character in _ZERO_WIDTH_JOINERS


def is_lower(character: str) -> bool:
    """Return whether a character is a lower-case letter in a script that capitalizes sentences."""
    return character.islower() and not _is_in(character, _GEORGIAN)


def has_unspaced(text: str) -> bool:
    """Return whether a text has any character from a script without spaces."""
    return not text.isascii() and bool(_IN_UNSPACED.search(text))


def is_syllabic(character: str) -> bool:
    """Return whether a character is of a script that marks syllables instead of words."""
    return _is_in(character, SYLLABIC)


def is_unspaced(character: str) -> bool:
    """Return whether a character is a letter, mark or digit in a script without spaces."""
    return _is_in(character, WITHOUT_SPACES) and unicodedata.category(character)[0] in "LMN"


def is_wide_punctuation(character: str) -> bool:
    """Return whether a mark has the width of a Chinese character, such as the comma U+FF0C; no space is beside it."""
    return unicodedata.category(character)[0] == "P" and unicodedata.east_asian_width(character) in "WF"


def starts_unspaced(text: str) -> bool:
    """Return whether a token starts a masking unit without a space before it.

    It does if its script has no spaces, or if it starts with the Ethiopic word separator. Leading marks are skipped:
    they belong to a letter in the token before.
    """
    letter = _first_letter(text)
    return bool(letter) and (letter == WORD_SEPARATOR or is_unspaced(letter))


def byte_starts_unspaced(utf8: bytes) -> bool:
    """Answer `starts_unspaced` for a token's bytes, which may start and end inside a character.

    The first two bytes decide for a truncated character. For kana and Chinese characters (U+3000 to U+9FFF) the first
    byte is enough: 0xE3 to 0xE9.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    if letter := _first_letter(decoder.decode(utf8.lstrip(_CONTINUING_BYTES))):
        return letter == WORD_SEPARATOR or is_unspaced(letter)
    cut, _ = decoder.getstate()
    if len(cut) < 2:
        return bool(cut) and 0xE3 <= cut[0] <= 0xE9
    # Complete the character with the lowest and the highest bytes: it is unspaced if both ends of that range are.
    missing = 1 + (cut[0] >= 0xE0) + (cut[0] >= 0xF0) + 1 - len(cut)
    ends = ((cut + bytes([last]) * missing).decode(errors="replace") for last in (0x80, 0xBF))
    return all(len(end) == 1 and _is_in(end, WITHOUT_SPACES) for end in ends)


def _first_letter(text: str) -> str:
    return next((character for character in text if not is_mark(character)), "")


def words(text: str) -> list[str]:
    """Split a text into words at white space; in scripts without spaces each character is a word.

    Such a character keeps its marks and the punctuation after it. The Ethiopic word separator ends a word.
    """
    return _WORD.findall(text) if _may_lack_spaces(text) else text.split()


def characters_a_word(words: Sequence[str]) -> int:
    """Return how many of `words` make up one English word: 1 if most have spaces, 2 in Chinese and Japanese, else 4."""
    starts = "".join(word[0] for word in words)
    without_spaces, east_asian = (len(script.findall(starts)) for script in (_IN_UNSPACED, _IN_EAST_ASIAN))
    if 2 * without_spaces <= len(words):
        return 1
    return _EAST_ASIAN_A_WORD if 2 * east_asian > without_spaces else _OTHERS_A_WORD


def count_words(sentences: list[str]) -> list[int]:
    """Return `len(words(sentence))` of each sentence, fast; their only white space is single spaces between words."""
    if not UNSPACED_CHARACTERS.are_in("".join(sentences)):
        return [1 + sentence.count(" ") for sentence in sentences]
    return [len(_WORD.findall(text)) if _may_lack_spaces(text) else 1 + text.count(" ") for text in sentences]


def spaced_words(text: str) -> list[str]:
    """Return `words` with their trailing white space, the first also with leading: joined, they give the text."""
    spaced = _SPACED_WORD.findall(text)
    return [text[: len(text) - len(text.lstrip())] + spaced[0], *spaced[1:]] if spaced else []


def _may_lack_spaces(text: str) -> bool:
    return not text.isascii() and bool(_WITHOUT_SPACES.search(text))


def _is_in(character: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    code = ord(character)
    return any(first <= code <= last for first, last in ranges)
