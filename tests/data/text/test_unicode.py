"""Properties of scripts: which characters are words of their own, and which bytes begin one."""

import pytest

from bertjax.data.text import sentences, unicode


@pytest.mark.parametrize(
    "text, words",
    [
        ("The cat, it sat.", ["The", "cat,", "it", "sat."]),
        ("판결을  본다.", ["판결을", "본다."]),
        ("東京タワー、行く。 abc", list("東京タワ") + ["ー、", "行", "く。", "abc"]),
        ("ที่นี่ ok", ["ที่", "นี่", "ok"]),
        ("में \u200d हूँ।", ["में", "\u200d", "हूँ।"]),
        ("", []),
        ("น้ำ กำลัง", ["น้ำ", "กำ", "ลั", "ง"]),  # a vowel that is a letter of its own to Python
        ("ﾊﾞｽ", ["ﾊﾞ", "ｽ"]),
        ("የሰው፡ልጅ፡ሁሉ፡፡ አበበ", ["የሰው፡", "ልጅ፡", "ሁሉ፡፡", "አበበ"]),  # the Ethiopic word separator
    ],
)
def test_words(text, words):
    assert unicode.words(text) == words
    assert "".join(unicode.spaced_words(text)) == text
    assert [word.strip() for word in unicode.spaced_words(text)] == words
    assert not text or unicode.count_words([" ".join(text.split())]) == [len(words)]


def test_bytes_of_characters_without_spaces():
    for text in ("東", "ไ", "ក", "က", "か", "ｶ", "𠮷", "ག", "፡"):
        assert unicode.starts_unspaced(text) and unicode.byte_starts_unspaced(text.encode())
        assert unicode.byte_starts_unspaced((text + "a").encode())
    for text in ("a", "é", "д", "ह", "한", "ሰ", "ა", "\u0e31", "、", "।"):
        assert not unicode.starts_unspaced(text) and not unicode.byte_starts_unspaced(text.encode())
    chinese, thai, hindi = ("字".encode(), "ก".encode(), "ह".encode())
    assert unicode.byte_starts_unspaced(chinese[:1]) and unicode.byte_starts_unspaced(chinese[:2])
    assert unicode.byte_starts_unspaced(thai[:2]) and not unicode.byte_starts_unspaced(hindi[:2])
    assert not any(unicode.byte_starts_unspaced(part) for part in (chinese[1:], chinese[2:], thai[:1], hindi[:1], b""))
    # Byte-level BPE merges the end of a character with the start of the next one.
    assert unicode.byte_starts_unspaced(thai[2:] + thai[:2]) and unicode.byte_starts_unspaced(chinese[1:] + chinese)
    assert unicode.byte_starts_unspaced("\u0e31ก".encode()) and not unicode.byte_starts_unspaced("a字".encode())
    assert not unicode.byte_starts_unspaced(hindi[2:] + hindi[:2]) and not unicode.byte_starts_unspaced(
        "é".encode()[:1]
    )
    for text, characters in (
        ("all human beings are born free 自由", 1),
        ("सभी मनुष्य जन्मजात स्वतन्त्रता", 1),
        ("人人生而自由，在尊严 UN", 2),
        ("มนุษย์ทั้งหลายเกิดมามีอิสระ", 4),
        ("အားလုံးသည် တူညီလွတ်လပ်သော", 4),
        ("", 1),
    ):
        assert unicode.characters_a_word(unicode.words(text)) == characters, text


@pytest.mark.parametrize("characters", [unicode.UNSPACED_CHARACTERS, sentences.OTHER_STOPS], ids=["unspaced", "stops"])
def test_a_table_finds_the_characters_of_a_regular_expression(characters):
    beyond = "".join(map(chr, range(0x40000, 0x110000)))
    assert not characters.pattern.search(beyond)
    for first in range(0, 0x40000, 64):  # all characters, surrogates too: blocks with and without one of the set
        block = "".join(map(chr, range(first, first + 64)))
        assert characters.are_in(block) == bool(characters.pattern.search(block))
    for text in ("", "plain", "caf\u00e9", "\U0001f600", "\ud800"):
        assert not characters.are_in(text)
