"""Columns of a file as a spreadsheet writes it: delimiter, text and label are found and printed, or refused."""

import json
import random
import shutil
from collections import Counter

import pytest

from bertjax.data import tokenizer
from bertjax.data.labeled import tables
from bertjax.data.labeled.label_sets import LabelSets
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.labeled.split import divide, folds, limited
from bertjax.data.labeled.texts import LabeledText, SiamesePairs
from bertjax.data.plan import Spec
from bertjax.runtime.errors import UserError
from tests import labeled_files
from tests.labeled_files import file_of

WORDS = "Lieferung kam leider zu spät und war beschädigt aber der Service antwortete sofort freundlich".split()


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
    return LabeledText(train=file_of(tmp_path, name, content), **{"text": "auto", "label": "auto"} | settings).located()


def test_a_file_without_a_header_keeps_its_first_line(tmp_path, capsys):
    content = table(";").partition("\n")[2]
    examples = located(tmp_path, "messages.csv", content)
    assert (examples.text, examples.label) == ("1", "2") and len(examples.read(examples.train)) == 60
    assert "its first line is an example" in capsys.readouterr().err
    assert located(tmp_path, "messages.csv", content, text="1").label == "2"
    assert located(tmp_path, "messages.csv", content, label="2").text == "1"
    with pytest.raises(UserError, match="a.tsv:1 has 1 fields, not 2"):  # the line that lost its tab
        tables.read(file_of(tmp_path, "a.tsv", "one, two x\nfour, five\ty\nsix, ten\tz\n"), ["0", "1"])


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
        (
            "body;fun;sad",
            "{text};{bit};{bit}",
            "set examples.label=fun, or examples.label_columns=.'fun', 'sad'. if each",
        ),
        ("question;answer;kind", "{text};{text} x;{label}", "'question' and 'answer' may each be the text: set exam"),
        ("id;kind", "{number};{label}", "none looks like the text: set examples.text=COLUMN"),
        ("text", "{label} of this", "none looks like the text: set examples.text=COLUMN"),
        ("message;id", "{text};{number}", "none looks like the label: set examples.label=COLUMN"),
    ],
)
def test_what_is_not_certain_is_refused_with_the_columns(tmp_path, header, row, complaint):
    rows = [row.format(text=text, label=label, number=n, bit=n % 2) for n, (text, label) in enumerate(messages())]
    with pytest.raises(UserError, match=complaint):
        located(tmp_path, "messages.csv", "\n".join([header, *rows]))


@pytest.mark.parametrize(
    "kind, settings, row, found",
    [
        (LabelSets, {"label": "auto"}, "{n};{text};{label}, cheap;", ("text", "", "kind")),
        (LabelSets, {"label": "auto", "separator": "/"}, "{n};{text};{label}/cheap;", ("text", "", "kind")),
        (LabelSets, {"label": "auto", "label_columns": ("c",)}, "{n};{text};x;1", ("text", "", "label")),
        (LabeledText, {"label": "auto"}, "{n};{text};{third}.5;", ("text", "", "kind")),
        (SiamesePairs, {"label": "", "pair": "auto"}, "{n};{text};x;{text} y", ("text", "c", "")),
    ],
)
def test_labels_of_every_task_are_found(tmp_path, kind, settings, row, found):
    rows = [row.format(text=text, label=label, n=n, third=n // 3) for n, (text, label) in enumerate(messages())]
    path = file_of(tmp_path, "a.csv", "\n".join(["id;text;kind;c", *rows]))
    located = kind(train=path, text="auto", **settings).located(kind is not LabeledText)
    assert (located.text, located.pair, located.label) == found


@pytest.mark.parametrize(
    "kind, settings, lines, found",
    [
        (SiamesePairs, {"label": "", "pair": "auto"}, "{text};{text} {n}", ("0", "1", "")),
        (
            SiamesePairs,
            {"label": "", "pair": "auto"},
            "1st text;2nd text\n{text};{text} {n}",
            ("1st text", "2nd text", ""),
        ),
        (LabeledText, {"label": "auto"}, "{n}.5;{text} {n}", ("1", "", "0")),
        (LabeledText, {"label": "auto", "pair": "auto"}, "{text};{third}.5;{text} {n}", ("0", "2", "1")),
        (LabeledText, {"label": "auto"}, "text;label;score\n{text} {n};yes;{n}.5", ("text", "", "score")),
    ],
)
def test_a_first_line_is_an_example_if_it_looks_like_one(tmp_path, kind, settings, lines, found):
    header, row = lines.rpartition("\n")[0], lines.rpartition("\n")[2]
    rows = [row.format(text=text, n=n, third=n // 3) for n, (text, _) in enumerate(messages())]
    path = file_of(tmp_path, "a.csv", "\n".join([*filter(None, [header]), *rows]))
    located = kind(train=path, text="auto", **settings).located(has_classes=False)
    assert (located.text, located.pair, located.label) == found and len(located.read(path)) == len(rows)


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


@pytest.mark.parametrize(
    "name, content, printed",
    [
        ("a.csv", 'text;label\n"one, two; three";x\nfour;y\n', "its fields are separated by ';', and are read so"),
        ("a.csv", 'sep=;\ntext;label\n"one, two; three";x\nfour;y\n', ""),
        ("a.csv", 'text , label\n"one, two; three",x\nfour,y\n', ""),
        ("a.csv", "text\tlabel\none, two; three\tx\nfour\ty\n", "separated by '\\t'"),
        ("a.tsv", 'text,label\n"one, two; three",x\nfour,y\n', "separated by ','"),
        ("a.tsv", '"id"\t"text"\t"label"\n1\t"one, two; three"\t"x"\n2\t"four"\t"y"\n', ""),
        ("a.json", '{"text": "one, two; three", "label": "x"}\n{"text": "four", "label": "y"}\n', ""),
        ("a.jsonl", '[{"text": "one, two; three", "label": "x"},\n {"text": "four", "label": "y"}]\n', ""),
        ("a.csv", '{"text": "one, two; three", "label": "x"}\n{"text": "four", "label": "y"}\n', ""),
        ("0.csv", '"one, two; three";x\nfour;y\n', "its fields are separated by ';', and are read so"),
        ("0.csv", 'sep=;\n"one, two; three";x\nfour;y\n', ""),
        ("0.csv", '"one, two; three",x\nfour,y\n', ""),
        ("0.csv", '"one, two; three"\tx\nfour\ty\n', "separated by '\\t'"),
    ],
)
def test_what_a_file_holds_counts_more_than_its_name(tmp_path, capsys, name, content, printed):
    """A spreadsheet in a country with decimal commas writes ;, R quotes everything, pandas calls JSON lines .json.

    The files 0.csv have no header.
    """
    columns = ["0", "1"] if name == "0.csv" else ["text", "label"]
    records = tables.read(file_of(tmp_path, name, content), columns)
    assert [[record[column] for column in columns] for record in records] == [["one, two; three", "x"], ["four", "y"]]
    line = capsys.readouterr().err
    assert printed in line and bool(line) == bool(printed)


T = 32


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return labeled_files.write(tmp_path_factory.mktemp("labeled"))


def source(files, store, **choices) -> LabeledSource:
    train, heldout = map(str, files)
    return LabeledSource(LabeledText(train=train, heldout=heldout, **choices), store.tokenizer)


def test_the_fingerprint_depends_on_the_content_only(files, store, tmp_path):
    elsewhere = [tmp_path / path.name for path in files]
    for path, copy in zip(files, elsewhere):
        shutil.copy(path, copy)
    spec = Spec("train", LabeledText(), T, seed=0)
    one, moved = source(files, store), source(elsewhere, store)
    assert one.fingerprint == moved.fingerprint
    assert one.plan(spec, one.classes).fingerprint == moved.plan(spec, one.classes).fingerprint
    elsewhere[1].write_text(elsewhere[1].read_text().replace("good", "bad", 1))
    assert source(elsewhere, store).fingerprint != one.fingerprint
    assert source(files, store, limit=50).fingerprint != one.fingerprint


def test_a_plan_keeps_the_fingerprint_of_older_runs(files, tmp_path):
    """So that runs that were started before a change of the code still resume."""
    words = tokenizer.from_model(labeled_files.vocabulary(tmp_path / "vocab.txt"), lowercase=True)
    train, heldout = map(str, files)
    labeled = LabeledSource(LabeledText(train=train, heldout=heldout), words)
    plan = labeled.plan(Spec("train", labeled.format, 16, seed=0, row_examples=3), labeled.classes)
    assert plan.fingerprint.startswith("53429d89b2")


SIZES = {"rare": 2, "some": 31, "most": 167}


def records() -> list[dict]:
    """200 records with three classes; every text of `most` occurs three times, in other cases and with more spaces."""
    texts = [(f"text {name} {number}", name) for name in ("rare", "some") for number in range(SIZES[name])]
    spellings = ("Text {} ", "text  {}", "TEXT {}")
    texts += [(spellings[number % 3].format(number // 3), "most") for number in range(SIZES["most"])]
    random.Random(0).shuffle(texts)
    return [{"text": text, "label": label} for text, label in texts]


def divided(share: float, seed: int = 0, rows: list[dict] | None = None):
    return divide(rows or records(), LabeledText(text="text", heldout=share, limit_seed=seed), has_classes=True)


@pytest.mark.parametrize("classes, size", [(100, 2), (3, 2), (40, 4)])
def test_many_tiny_classes_leave_the_share_what_it_is(classes, size):
    """Each class of two would give one record, which is half of the file."""
    rows = [{"text": f"text {number}", "label": f"class {number % classes}"} for number in range(classes * size)]
    train, heldout = divided(0.2, rows=rows)
    assert 0.15 * len(rows) <= len(heldout) <= 0.25 * len(rows)
    assert len({record["label"] for record in train}) == classes


@pytest.mark.parametrize("count", [2, 5])
def test_folds_divide_classes_and_keep_equal_texts_together(count):
    rows = records()
    parts = folds(rows, LabeledText(text="text", folds=count), has_classes=True)
    assert sorted(map(json.dumps, sum(parts, []))) == sorted(map(json.dumps, rows)), "nothing lost, nothing twice"
    texts = [{" ".join(record["text"].casefold().split()) for record in part} for part in parts]
    assert len(set.union(*texts)) == sum(map(len, texts)), "no text is in two folds"
    for name in SIZES:
        sizes = [sum(record["label"] == name for record in part) for part in parts]
        assert max(sizes) - min(sizes) <= (3 if name == "most" else 1), "texts of `most` occur three times"
    assert all([record for record in rows if record in part] == part for part in parts), "in the order of the file"


# Sorted by class, as many files are: the first 100 records would have one class only.
COUNTS = {"often": 600, "sometimes": 300, "seldom": 99, "once": 1}
SORTED = [{"sentence": str(number), "label": name} for name, count in COUNTS.items() for number in range(count)]


def take(limit: int, seed: int = 0) -> list[dict]:
    return limited(SORTED, LabeledText(limit=limit, limit_seed=seed))


@pytest.mark.parametrize("limit", [10, 100, 500])
def test_classes_keep_their_shares_and_none_is_lost(limit):
    taken = take(limit)
    assert len(taken) == limit == len({id(record) for record in taken})
    counts = Counter(record["label"] for record in taken)
    assert counts.keys() == COUNTS.keys()
    for name, count in COUNTS.items():
        assert abs(counts[name] - limit * count / len(SORTED)) <= 2, name
