"""Columns of a file as a spreadsheet writes it: delimiter, text and label are found and printed, or refused."""

import json
import random

import pytest

from bertjax.data.labeled.texts import LabeledText
from bertjax.runtime.errors import UserError

WORDS = "Lieferung kam leider zu spät und war beschädigt aber der Service antwortete sofort freundlich".split()
KOREAN = "배송이 너무 늦게 도착해서 실망했지만 상담원은 아주 친절하게 답변해 주었습니다".split()
CHINESE = "包裹到得太晚而且已经损坏但是客服马上很友好地回答了我的问题"


def messages(count: int = 60, words: list[str] | str = WORDS, glue: str = " ") -> list[tuple[str, str]]:
    draw = random.Random(0)
    return [
        (glue.join(draw.sample(words, min(9, len(words)))), ("praise", "complaint")[draw.random() < 0.4])
        for _ in range(count)
    ]


def table(mark: str, header: str = "Nr,Nachricht,Kategorie") -> str:
    rows = [f"{number}{mark}{text}{mark}{label}" for number, (text, label) in enumerate(messages())]
    return "\n".join([header.replace(",", mark), *rows]) + "\n"


def located(tmp_path, name: str, content: str | bytes, **settings) -> LabeledText:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return LabeledText(train=str(path), **{"text": "auto", "label": "auto"} | settings).located()


@pytest.mark.parametrize("name, mark", [*zip(["messages.csv", "messages.tsv"] * 2, [";", ",", "\t", "|"])])
def test_delimiter_and_columns_are_found_and_printed(tmp_path, capsys, mark, name):
    examples = located(tmp_path, name, table(mark))
    assert (examples.text, examples.label) == ("Nachricht", "Kategorie")
    records = examples.read(examples.train)
    assert len(records) == 60 and set(records[0]) == {"Nachricht", "Kategorie", "_where"}
    output = capsys.readouterr().err
    assert "the column of the text is 'Nachricht', that of the label 'Kategorie'" in output
    is_usual = mark == {"messages.csv": ",", "messages.tsv": "\t"}[name]
    assert (f"its fields are separated by {mark!r}, and are read so" in output) == (not is_usual)


def test_a_german_spreadsheet(tmp_path, capsys):
    """A byte order mark, Windows line ends, rows of delimiters alone, a comma in every text, spaces beside labels."""
    lines = ["Nr;Nachricht;Kategorie;", *(f"{n};Nun, {text};{label} ;" for n, (text, label) in enumerate(messages()))]
    lines[30:30] = [";;;", "", " ; ;;"]
    examples = located(tmp_path, "messages.csv", ("\ufeff" + "\r\n".join(lines) + "\r\n;;;\r\n").encode())
    records = examples.read(examples.train)
    assert len(records) == 60 and set(examples.class_counts(records)) == {"praise", "complaint"}
    output = capsys.readouterr().err
    assert "separated by ';'" in output and "empty rows skipped: 3" in output


@pytest.mark.parametrize("rows", [messages(words=KOREAN), messages(words=CHINESE, glue="")])
def test_other_scripts_and_other_columns(tmp_path, rows):
    header = "date;address;text_ko;class_ko;stars_given\n"
    lines = [f"2024-01-{n % 28:02} 10:00;user{n}@example.com;{t};{c};{n / 7}\n" for n, (t, c) in enumerate(rows)]
    examples = located(tmp_path, "reviews.csv", header + "".join(lines))
    assert (examples.text, examples.label) == ("text_ko", "class_ko")


def test_a_file_without_a_header_keeps_its_first_line(tmp_path, capsys):
    content = table(";").partition("\n")[2]
    examples = located(tmp_path, "messages.csv", content)
    assert (examples.text, examples.label) == ("1", "2") and len(examples.read(examples.train)) == 60
    assert "its first line is an example" in capsys.readouterr().err
    assert located(tmp_path, "messages.csv", content, text="1").label == "2"
    assert located(tmp_path, "messages.csv", content, label="2").text == "1"


def test_files_without_a_header_or_a_name_of_a_column(tmp_path):
    assert located(tmp_path, "messages.csv", table(",", ",Nachricht,Kategorie")).text == "Nachricht"
    assert located(tmp_path, "messages.csv", table(","), label="stars").text == "Nachricht"
    lines = [json.dumps({"id": n, "body": text, "kind": label}) for n, (text, label) in enumerate(messages())]
    content = "\n".join(lines)
    examples = located(tmp_path, "messages.jsonl", content)
    assert (examples.text, examples.label) == ("body", "kind")
    assert located(tmp_path, "messages.jsonl", content, label="").label == ""
    assert located(tmp_path, "messages.jsonl", content, text="kind", label="id").text == "kind", "nothing to find"


@pytest.mark.parametrize(
    "header, row, complaint",
    [
        (
            "message;kind;channel",
            "{text};{label};{label}",
            r"'message' \(text\), 'kind' \(2 values\), 'channel' \(2 values\); 'kind' and 'channel' may each be the "
            "label: set examples.label=kind",
        ),
        ("question;answer;kind", "{text};{text} x;{label}", "'question' and 'answer' may each be the text: set exam"),
        ("id;kind", "{number};{label}", "none looks like the text: set examples.text=id"),
        ("message;id", "{text};{number}", "none looks like the label: set examples.label=message"),
    ],
)
def test_what_is_not_certain_is_refused_with_the_columns(tmp_path, header, row, complaint):
    rows = [row.format(text=text, label=label, number=n) for n, (text, label) in enumerate(messages())]
    with pytest.raises(UserError, match=complaint):
        located(tmp_path, "messages.csv", "\n".join([header, *rows]))


@pytest.mark.parametrize("names", ["text,praise", "comment,praise"])
def test_a_column_that_is_called_like_one_of_its_classes(tmp_path, capsys, names):
    """The first line has one word for the text, so it names the columns."""
    rows = [f"{text},{'praise' if n % 2 else 'other'}" for n, (text, _) in enumerate(messages())]
    examples = located(tmp_path, "messages.csv", "\n".join([names, *rows]))
    assert (examples.text, examples.label) == tuple(names.split(",")) and len(examples.read(examples.train)) == len(
        rows
    )
    notes = capsys.readouterr().err
    assert "its first line is an example" not in notes and "if it is an example, set examples.text=0" in notes
