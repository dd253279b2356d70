"""Spoiled text is recognized, and text of many languages is not."""

import pytest

from bertjax.data.inspect.damage import _found
from tests.data import scripts

FRENCH = "Les élèves étaient déjà très fatigués après l'été; où êtes-vous allés, à Noël? « Là-bas », répondit-il. " * 5
ICELANDIC = "Það er svo að það þarf að fá þá til að þýða þetta á íslensku, því að ég hef ekki tíma í það núna. " * 5


@pytest.mark.parametrize("name", scripts.NAMES)
def test_text_of_twelve_scripts_is_whole(name):
    assert not any(map(_found, scripts.texts(name, 12)))


@pytest.mark.parametrize("text", [FRENCH, ICELANDIC, "if a < b && c > d: x <= y", "AT&T; R&D < 3 <3"])
def test_accents_and_signs_are_no_damage(text):
    assert not _found(text)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
@pytest.mark.parametrize(
    "text", [FRENCH, *(scripts.texts(name, 12)[0] for name in ("hangul", "devanagari", "cyrillic"))]
)
def test_utf8_that_was_read_as_latin(text, encoding):
    spoiled = text.encode().decode(encoding, "replace" if encoding == "cp1252" else "strict")
    assert set(_found(spoiled)) == {"mojibake"}


def test_other_encodings_that_were_read_as_latin():
    for name, encoding in (("hangul", "cp949"), ("cyrillic", "cp1251"), ("kana", "euc_jp")):
        assert set(_found(scripts.texts(name, 12)[1].encode(encoding, "ignore").decode("latin-1"))) == {"mojibake"}
    assert set(_found("un caf\ufffd et un \ufffdt\ufffd")) == {"mojibake"}


def test_markup():
    html = "<div class='a'><p>Text &amp; more</p><br/>Second&nbsp;line</div> " * 3
    assert set(_found(html)) == {"markup"} and "<div" in _found(html)["markup"]
