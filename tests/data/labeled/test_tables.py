"""Tables as records: columns by name and by number, quotes, compression, and errors in one line."""

import gzip
import json

import pytest

from bertjax.data.labeled import tables
from bertjax.data.labeled.base import WHERE
from bertjax.runtime.errors import UserError


def write(tmp_path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def columns_of(records: list[dict]) -> list[dict]:
    return [{key: value for key, value in record.items() if key != WHERE} for record in records]


@pytest.mark.parametrize(
    "name, content, columns, expected, places",
    [
        ("a.tsv.gz", '\ufeffid\ta\tb\r\n1\t" Yes\t1\r\n2\tNo\t0\r\n', "ab", [['" Yes', "1"], ["No", "0"]], "23"),
        ("a.tsv", "gj04\t1\t\tThey.\ngj04\t0\t*\tThem.\n", "31", [["They.", "1"], ["Them.", "0"]], "12"),
        ("a.csv", 'a,b\n"x, ""y""\nz",1\nd,2\n', "ab", [['x, "y"\nz', "1"], ["d", "2"]], "24"),
    ],
)
def test_columns_by_name_and_number(tmp_path, name, content, columns, expected, places):
    """Quotes of a .tsv are text, and a field of a .csv in quotes may span lines."""
    path = write(tmp_path, name, content)
    records = tables.read(path, list(columns))
    assert columns_of(records) == [dict(zip(columns, values)) for values in expected]
    assert [record[WHERE] for record in records] == [f"{path}:{place}" for place in places]


def test_an_array_of_objects(tmp_path):
    rows = [{"id": 1, "text": "Ja\nnein", "label": "x"}, {"text": "그래", "label": "y", "id": 2}, 3, {"label": "z"}]
    path, errors = write(tmp_path, "a.json.gz", json.dumps(rows, indent=1, ensure_ascii=False)), []
    assert columns_of(tables.read(path, ["text"], on_bad=errors.append)) == [{"text": "Ja\nnein"}, {"text": "그래"}]
    assert columns_of(tables.read(path, ["text"], on_bad=errors.append, all_columns=True)) == rows[:2]
    assert [str(error).removeprefix(path) for error in errors[:2]] == [
        ": object 3 is '3'; write {'text': ...}",
        ": object 4 has no field 'text', it has 'label'; correct the line or the name",
    ]


@pytest.mark.parametrize("name, mark", [("a.tsv", "\t"), ("a.csv", ",")])
def test_all_rows_have_one_number_of_fields(tmp_path, name, mark):
    """A delimiter inside of a field without quotes would shift the label."""
    rows = [["text", "label"], ["Hello", "1"], ["Hello", "world", "1"], ["one"], ["Hi", "0"]]
    path, errors = write(tmp_path, name, "".join(mark.join(row) + "\n" for row in rows)), []
    records = tables.read(path, ["text", "label"], on_bad=errors.append)
    assert columns_of(records) == [{"text": "Hello", "label": "1"}, {"text": "Hi", "label": "0"}]
    wrong = [str(error).removeprefix(path).partition(";")[0] for error in errors]
    assert wrong == [":3 has 3 fields, not 2", ":4 has 1 fields, not 2"]


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
    records = tables.read(write(tmp_path, name, content), columns)
    assert [[record[column] for column in columns] for record in records] == [["one, two; three", "x"], ["four", "y"]]
    line = capsys.readouterr().err
    assert printed in line and bool(line) == bool(printed)


def test_what_is_found_in_a_file_is_said_once(tmp_path, capsys):
    """A command reads a file several times, for its labels, its lengths and its scores."""
    path = write(tmp_path, "a.csv", "text;label\none;x\n\n;\ntwo;y\n")
    for _ in range(2):
        assert len(tables.read(path, ["text", "label"])) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix(f"{path}: ").partition(":")[0] for line in lines] == [
        "its fields are separated by ';', and are read so",
        "empty rows skipped",
    ]
    # What `to_csv(sep="\t")` of pandas writes; GLUE's texts have quotes of their own.
    text = 'text\tlabel\n"He said ""hi"""\tx\n{}\ty\n'
    tables.read(write(tmp_path, "a.tsv", text.format("plain")), ["text", "label"])
    assert "1 texts are in double quotes, which stay; set examples.quoted=True" in capsys.readouterr().err
    tables.read(write(tmp_path, "a.tsv", text.format('" Yes , he said .') * 2), ["text", "label"], on_bad=print)
    assert "double quotes" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "content, columns, complaint",
    [
        ("0\tNice, really\textra\n1\tBad, really\n", ["0", "1"], r"a.tsv:\d has \d "),
        ("x\ta, b, c, d\n", ["3"], "a.tsv:1 has 2 fields, not 4"),
        ("Great, I loved it\nBad,\tsad, film\n", ["0"], "a.tsv:2 has 2 fields, not 1"),
    ],
)
def test_commas_in_a_text_do_not_separate_columns(tmp_path, content, columns, complaint):
    """A line with a tab too many, or a number that no column has, is an error of a table of tabs."""
    with pytest.raises(UserError, match=complaint):
        tables.read(write(tmp_path, "a.tsv", content), columns)
