"""Filters: each rule at its threshold, what is rewritten, and settings that cannot be."""

import json

import pytest

from bertjax.data.filters import FILTERS
from bertjax.data.filters.rules import C4, Decontamination, GopherQuality, GopherRepetition, Length, Personal, Scripts
from bertjax.data.sources import Document
from bertjax.runtime.errors import UserError
from tests.data import scripts

PROSE = "It is the custom of the house to walk with the dog and to have tea after that, every single day. "
WORDS = [f"word{i}" for i in range(100)]
LINE = " ".join(WORDS[80:])


def reason(rule, text):
    return rule.keep(Document("part", 1, text))


@pytest.mark.parametrize(
    "settings, words, why",
    [
        ({"fewest_words": 5}, 5, None),
        ({"fewest_words": 6}, 5, "fewer than 6 words"),
        ({"most_words": 4}, 5, "more than 4 words"),
        ({"most_words": 5, "fewest_characters": 10}, 5, "fewer than 10 characters"),
        ({"most_characters": 8}, 5, "more than 8 characters"),
        ({"most_characters": 9}, 5, None),
    ],
)
def test_length(settings, words, why):
    assert reason(Length(**settings), " ".join("a" * words)) == why


@pytest.mark.parametrize(
    "text, why",
    [
        (PROSE * 3, None),
        (PROSE, "fewer than 50 words"),
        ("the of " + "a b " * 40, "mean word shorter than 3"),
        ("the of " + "extraordinarily " * 60, "mean word longer than 10"),
        (PROSE * 3 + "# " * 8, "more than 0.1 symbols a word"),
        (PROSE * 3 + "etc... " * 9, "more than 0.1 symbols a word"),
        ("\n".join(f"\u2022 {PROSE}" for _ in range(5)), "more than 90% of the lines start with a bullet"),
        (f"{PROSE}\n{PROSE}\n{PROSE}\nand so on...\nand on\u2026", "more than 30% of the lines end with an ellipsis"),
        (PROSE * 3 + "1,000 " * 20, "less than 80% of the words hold a letter"),
        ("Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. " * 6, "fewer than 2 stop words"),
    ],
)
def test_gopher_quality(text, why):
    assert reason(GopherQuality(), text) == why
    if "stop words" in str(why):
        assert reason(GopherQuality(stop_words=("den", "über")), text) is None
        assert reason(GopherQuality(fewest_stop_words=0), text) is None


@pytest.mark.parametrize(
    "text, why",
    [
        (" ".join(WORDS), None),
        ("one", None),
        ("\n".join(WORDS[:60] + WORDS[:40]), "more than 30% of the lines are repeated"),
        ("\n".join([*WORDS[:40], LINE, LINE]), "more than 20% of the characters are in repeated lines"),
        ("\n\n".join([*WORDS[:2], "word0", "word0"]), "more than 30% of the lines are repeated"),
        ("\n".join(f"{w} so it is" for w in WORDS), "one 2-gram has more than 20% of the characters"),
        ("\n".join(f"{w}{w}{w}{w} aa bb cc" for w in WORDS), "one 3-gram has more than 18% of the characters"),
        (" ".join(WORDS + WORDS[:30]), "more than 15% of the characters are in repeated 5-grams"),
        (" ".join(WORDS + WORDS[:16]), "more than 12% of the characters are in repeated 8-grams"),
        (" ".join(WORDS + WORDS[:10]), None),
    ],
)
def test_gopher_repetition(text, why):
    assert reason(GopherRepetition(), text) == why


def plain_share(words, n):
    """The share of characters in words of n-grams that occurred before."""
    seen, covered = set(), set()
    for i in range(len(words) - n + 1):
        gram = tuple(words[i : i + n])
        covered |= set(range(i, i + n)) if gram in seen else set()
        seen.add(gram)
    return sum(len(words[i]) for i in covered) / sum(map(len, words))


@pytest.mark.parametrize("repeated", [5, 10, 11, 13, 14, 16, 18, 20, 24])
def test_repeated_ngrams_are_those_of_a_plain_loop(repeated):
    words = [*WORDS[:40], *WORDS[:repeated], *WORDS[40:]]
    limits = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
    over = [n for n, share in limits.items() if plain_share(words, n) > share]
    why = reason(GopherRepetition(), " ".join(words))
    assert (why is None) == (not over) and (not over or f"repeated {over[0]}-grams" in why)


PAGE = "This is a line.\nHere is one more, is it not?\nA third line is here.\nA fourth one follows!\nThe last line."


def test_c4_removes_lines_and_counts_them():
    noise = ["Menu", "Home | About us", "Please enable Javascript to see this.", "Two words.", "It goes on so..."]
    text, changes = C4().rewrite("\n".join([*noise, "Read our privacy policy here.", PAGE + "[12]"]))
    assert text == PAGE and changes == 7
    assert C4().rewrite(PAGE) == (PAGE, 0) and reason(C4(), PAGE) is None
    # Past invisible characters, too, and at colons that are full stops.
    text = "यह पहला वाक्य है||\nΠού πας εσύ Γιατι\u0301;\n"
    text += "שלום לכם חברים יקרים.\u200f\nԵս գնում եմ տուն հիմա:\nሰላም ለሁሉ ነው ዛሬ::"
    assert C4().rewrite(text) == (text, 0)


def pages_of(name):
    texts = scripts.texts(name, 40)
    return ["\n".join(texts[first : first + 6])[:6000] for first in range(0, 36, 6)]


@pytest.mark.parametrize("name", scripts.NAMES)
def test_sentences_of_every_script_stay(name):
    """And repetition is found in every script; marks are part of their letters."""
    pages = pages_of(name)
    assert reason(Scripts(fewest_letters=0.8), pages[0]) is None
    assert reason(Scripts(fewest_letters=0.8), pages[0][:200] + "12345 " * 20) == "less than 80% letters"
    assert [reason(GopherRepetition(), page) for page in pages] == [None] * 6
    phrase = pages[0][:60].rsplit(" ", 1)[0] + " "
    assert reason(GopherRepetition(), pages[0] + phrase * (len(pages[0]) // len(phrase)))
    if name in scripts.SCRIPTS:
        kept, changes = C4().rewrite(pages[0])
        assert len(kept) > 0.9 * len(pages[0]), changes
        assert reason(C4(fewest_sentences=3), kept) is None
        assert reason(Length(fewest_words=100), pages[0]) is None
        assert reason(GopherQuality(fewest_stop_words=0, shortest_mean_word=2), pages[0]) is None


@pytest.mark.parametrize(
    "text, why",
    [
        (PAGE + "\nLorem ipsum dolor sit.", "lorem ipsum"),
        (PAGE + "\nfunction() { return.", "curly bracket"),
        (PAGE.replace("The last line.", ""), "fewer than 5 sentences"),
    ],
)
def test_c4_drops_pages(text, why):
    assert reason(C4(), text) == why


@pytest.mark.parametrize(
    "settings, text, why",
    [
        ({"at_least": {"hangul": 0.5}}, "판결은 원심과 abc", None),
        ({"at_least": {"hangul": 0.5}}, "판결 abcdef", "less than 50% of the letters are hangul"),
        ({"at_most": {"latin": 0.2}}, "판결은 원심과 같다 abc", "more than 20% of the letters are latin"),
        ({"at_least": {"cjk": 0.9}}, "我们今天去学校。", None),
        ({"at_least": {"latin": 1.0}}, "\uff21\uff22\uff23 é 123 !?", None),
        ({"most_symbols": 0.1}, "a + b = c €", "more than 10% symbols"),
        ({"most_symbols": 0.1}, "Prices rise, they say; nobody knows why.", None),
        ({"fewest_letters": 0.6}, "Call 555-1234-5678", "less than 60% letters"),
        ({"at_most": {"latin": 0.4}}, "µµµ ªº", None),
        ({"at_least": {"latin": 0.1}}, "12345", "less than 10% of the letters are latin"),
    ],
)
def test_scripts(settings, text, why):
    assert reason(Scripts(**settings), text) == why


@pytest.mark.parametrize(
    "text, masked, changes",
    [
        ("Write to jo.e+x@mail.example.org, or not.", "Write to email@example.com, or not.", 1),
        ("The server 8.8.8.8 and 8.8.4.4.", "The server 192.0.2.1 and 192.0.2.1.", 2),
        ("At home 192.168.0.1 or 127.0.0.1", "At home 192.168.0.1 or 127.0.0.1", 0),
        ("Version 1.2.3.4.5 and 999.1.1.1 and section 1.2.3", "Version 1.2.3.4.5 and 999.1.1.1 and section 1.2.3", 0),
        ("me@home and @name", "me@home and @name", 0),
        ("already email@example.com", "already email@example.com", 0),
        ("이메일hong@naver.com으로 보냈다.", "이메일email@example.com으로 보냈다.", 1),
    ],
)
def test_personal_addresses_are_masked_and_counted(text, masked, changes):
    assert Personal().rewrite(text) == (masked, changes)


def test_decontamination_drops_documents_that_share_13_words(tmp_path):
    question = " ".join(WORDS[:20])
    (tmp_path / "eval.jsonl").write_text(json.dumps({"text": question}) + "\n" + json.dumps({"text": "too short"}))
    rule = Decontamination(against=(str(tmp_path / "eval.jsonl"),))
    assert reason(rule, f"Before. {', '.join(WORDS[5:18]).upper()} after") == "shares 13 words with evaluation files"
    assert reason(rule, " ".join(WORDS[5:17])) is None and reason(rule, "it is too short for that") is None


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_decontamination_tells_a_copy_from_the_same_language(name, tmp_path):
    evaluation, *others = scripts.texts(name, 40)
    (tmp_path / "eval.jsonl").write_text(json.dumps({"text": evaluation}))
    rule = Decontamination(against=(str(tmp_path / "eval.jsonl"),))
    assert [reason(rule, text) for text in others[:20]] == [None] * 20
    passage = max(evaluation.split("\n"), key=len)
    assert reason(rule, f"{others[0]}\n{passage}") == "shares 13 words with evaluation files"


def test_evaluation_files_are_identified_by_content(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "eval.txt").write_text(" ".join(WORDS))
    first, second = (Decontamination(against=(str(tmp_path / name / "eval.txt"),)).identity() for name in ("a", "b"))
    assert first == second and str(tmp_path) not in json.dumps(first)
    (tmp_path / "b" / "eval.txt").write_text(" ".join(WORDS[1:]))
    assert Decontamination(against=(str(tmp_path / "b" / "eval.txt"),)).identity() != first


@pytest.mark.parametrize(
    "kind, settings, complaint",
    [
        ("length", {}, "has no limit; set fewest_words or"),
        ("gopher_quality", {"stop_words": ("a",)}, "fewest_stop_words=2 of the filter 'gopher_quality' exceeds its 1"),
        ("scripts", {"at_least": {"hangull": 0.5}}, "knows no script 'hangull'; take a Unicode name, such as"),
        ("scripts", {}, "has no limit; set at_least"),
        ("decontamination", {}, "against of the filter 'decontamination' is empty; name evaluation files"),
    ],
)
def test_bad_settings(kind, settings, complaint):
    with pytest.raises(UserError) as caught:
        FILTERS.class_of(kind)(**settings)
    assert complaint in str(caught.value)
