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


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_tsv_columns_have_names_and_quotes_are_text(tmp_path, name):
    path = write(tmp_path, name, '\ufeffid\ttext\tlabel\r\n1\t" Yes , he said .\t1\r\n2\tNo\t0\r\n')
    records = tables.read(path, ["text", "label"])
    assert columns_of(records) == [{"text": '" Yes , he said .', "label": "1"}, {"text": "No", "label": "0"}]
    assert [record[WHERE] for record in records] == [f"{path}:2", f"{path}:3"]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_an_array_of_objects(tmp_path, name):
    rows = [{"id": 1, "text": "Ja\nnein", "label": "x"}, {"text": "그래", "label": "y", "id": 2}, 3, {"label": "z"}]
    path, errors = write(tmp_path, name, json.dumps(rows, indent=1, ensure_ascii=False)), []
    assert columns_of(tables.read(path, ["text"], on_bad=errors.append)) == [{"text": "Ja\nnein"}, {"text": "그래"}]
    assert columns_of(tables.read(path, ["text"], on_bad=errors.append, all_columns=True)) == rows[:2]
    assert [str(error).removeprefix(path) for error in errors[:2]] == [
        ": object 3 is '3'; write {'text': ...}",
        ": object 4 has no field 'text', it has 'label'; correct the line or the name",
    ]


@pytest.mark.parametrize(
    "content, complaint",
    [
        ('{"text": "a"\n', "is not JSON .*; a .json file holds one array of objects; a .jsonl file"),
        ('{"data": []}', "is not an array of objects: it is .*; write .{'text': ...}, ....$"),
    ],
)
def test_other_json_is_refused(tmp_path, content, complaint):
    with pytest.raises(UserError, match=complaint):
        tables.read(write(tmp_path, "a.json", content), ["text"])


def test_columns_without_a_header_have_numbers(tmp_path):
    path = write(tmp_path, "cola.tsv", "gj04\t1\t\tThey sing.\ngj04\t0\t*\tThey singing.\n")
    assert columns_of(tables.read(path, ["3", "1"])) == [
        {"3": "They sing.", "1": "1"},
        {"3": "They singing.", "1": "0"},
    ]


def test_a_quoted_csv_field_may_span_lines(tmp_path):
    path = write(tmp_path, "a.csv", 'text,label\n"one, ""two""\nthree",x\nfour,y\n')
    records = tables.read(path, ["text", "label"])
    assert columns_of(records) == [{"text": 'one, "two"\nthree', "label": "x"}, {"text": "four", "label": "y"}]
    assert records[1][WHERE] == f"{path}:4"


def test_all_rows_have_one_number_of_fields(tmp_path):
    """A delimiter inside of a field without quotes would shift the label."""
    for name, mark in (("a.tsv", "\t"), ("a.csv", ",")):
        rows = [["text", "label"], ["Hello", "1"], ["Hello", "world", "1"], ["one"], ["Hi", "0"]]
        path = write(tmp_path, name, "".join(mark.join(row) + "\n" for row in rows))
        errors = []
        records = tables.read(path, ["text", "label"], on_bad=errors.append)
        assert columns_of(records) == [{"text": "Hello", "label": "1"}, {"text": "Hi", "label": "0"}]
        assert [str(error).removeprefix(path).partition(";")[0] for error in errors] == [
            ":3 has 3 fields, not 2",
            ":4 has 1 fields, not 2",
        ]
    path = write(tmp_path, "cola.tsv", "a\t1\t\tThey sing.\nb\t0\nc\t0\t\tThey.\n")
    assert [r["3"] for r in tables.read(path, ["3", "1"], on_bad=errors.append)] == ["They sing.", "They."]
    assert str(errors[-1]).startswith(f"{path}:2 has 2 fields, not 4; give every line all columns")


@pytest.mark.parametrize(
    "name, content, printed",
    [
        ("a.csv", 'text;label\n"one; two";x\nthree;y\n', "its fields are separated by ';', and are read so"),
        ("a.csv", 'sep=;\ntext;label\n"one; two";x\nthree;y\n', ""),
        ("a.csv", 'text , label\n"one; two",x\nthree,y\n', ""),
        ("a.csv", "text\tlabel\none; two\tx\nthree\ty\n", "separated by '\\t'"),
        ("a.tsv", 'text,label\n"one; two",x\nthree,y\n', "separated by ','"),
        ("a.tsv", '"id"\t"text"\t"label"\n1\t"one; two"\t"x"\n2\t"three"\t"y"\n', ""),
        ("a.json", '{"text": "one; two", "label": "x"}\n{"text": "three", "label": "y"}\n', ""),
        ("a.jsonl", '[{"text": "one; two", "label": "x"},\n {"text": "three", "label": "y"}]\n', ""),
        ("a.csv", '{"text": "one; two", "label": "x"}\n{"text": "three", "label": "y"}\n', ""),
    ],
)
def test_what_a_file_holds_counts_more_than_its_name(tmp_path, capsys, name, content, printed):
    """A spreadsheet in a country with decimal commas writes ;, R quotes everything, pandas calls JSON lines .json."""
    records = tables.read(write(tmp_path, name, content), ["text", "label"])
    assert columns_of(records) == [{"text": "one; two", "label": "x"}, {"text": "three", "label": "y"}]
    assert printed in capsys.readouterr().err


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


@pytest.mark.parametrize(
    "content, printed",
    [
        ("one, two, three;x\nfour;y\n", "its fields are separated by ';', and are read so"),
        ("sep=;\none, two, three;x\nfour;y\n", ""),
        ('"one, two, three",x\nfour,y\n', ""),
        ('"one, two, three"\tx\nfour\ty\n', "separated by '\\t'"),
    ],
)
def test_delimiters_of_tables_without_a_header(tmp_path, capsys, content, printed):
    records = tables.read(write(tmp_path, "a.csv", content), ["0", "1"])
    assert columns_of(records) == [{"0": "one, two, three", "1": "x"}, {"0": "four", "1": "y"}]
    assert printed in (line := capsys.readouterr().err) and bool(line) == bool(printed)


def test_a_line_with_a_tab_too_many_does_not_make_commas_of_the_tabs(tmp_path):
    path = write(tmp_path, "a.tsv", "0\tNice, really\textra\n1\tBad, really\n")
    with pytest.raises(UserError, match=r"a.tsv:\d has \d "):
        tables.read(path, ["0", "1"])


def test_a_header_is_no_record_if_columns_have_numbers(tmp_path):
    """Its name of the label would be a class."""
    path = write(tmp_path, "a.csv", "Text,id,Label\na,1,x\n")
    with pytest.raises(
        UserError, match=r"a.csv:1 has the names of the columns \('Text', 'Label'\), and columns are gi"
    ):
        tables.read(path, ["0", "2"])
    assert len(tables.read(write(tmp_path, "a.csv", "text,1\nb,0\n"), ["0", "1"])) == 2


def test_a_header_in_the_middle_is_no_record(tmp_path):
    """As in files that were put together; its names would be a text and a class."""
    path = write(tmp_path, "a.csv", "text,label\na,x\ntext,label\nb,y\n")
    with pytest.raises(UserError, match="a.csv:3 has the names of the columns again; remove the line"):
        tables.read(path, ["text", "label"])
    assert len(tables.read(path, ["text", "label"], on_bad=lambda error: None)) == 2


def test_a_number_of_a_column_is_not_looked_for_in_a_text(tmp_path):
    """The second field has three commas, which do not separate columns."""
    with pytest.raises(UserError, match="a.tsv:1 has 2 fields, not 4"):
        tables.read(write(tmp_path, "a.tsv", "x\ta, b, c, d\n"), ["3"])


def test_quotes_that_stay_are_mentioned(tmp_path, capsys):
    """What `to_csv(sep="\\t")` of pandas writes; GLUE's texts have quotes of their own."""
    text = 'text\tlabel\n"He said ""hi"""\tx\n{}\ty\n'
    tables.read(write(tmp_path, "a.tsv", text.format("plain")), ["text", "label"])
    assert "1 texts are in double quotes, which stay; set examples.quoted=True" in capsys.readouterr().err
    tables.read(write(tmp_path, "a.tsv", text.format('" Yes , he said .') * 2), ["text", "label"], on_bad=print)
    assert "double quotes" not in capsys.readouterr().err


@pytest.mark.parametrize("name, delimiter", [("a.csv", ","), ("a.tsv", "\t")])
def test_long_fields_and_carriage_returns_are_text(tmp_path, name, delimiter):
    texts = ["a" * 400_000, "one\rtwo", "\ud55c\u2028\x00"]
    rows = [["text", "label"], *([text, "x"] for text in texts)]
    path = write(tmp_path, name, "".join(delimiter.join(row) + "\r\n" for row in rows))
    assert [record["text"] for record in tables.read(path, ["text", "label"])] == texts


def test_json_lines(tmp_path):
    path = write(tmp_path, "a.jsonl", json.dumps({"text": "한글", "label": 3, "more": None}) + "\n\n")
    assert columns_of(tables.read(path, ["text", "label"])) == [{"text": "한글", "label": 3}]


@pytest.mark.parametrize(
    "name, text, complaint",
    [
        ("a.tsv", "text\tlabel\na\t1\n", "a.tsv has no column 'other'; it has 'text', 'label'"),
        ("a.jsonl", '{"text": 1}\n', "a.jsonl:1 has no field 'other', it has 'text'; correct the line or the name"),
        ("a.jsonl", '{"other": 1}\n{"other"\n', "a.jsonl:2 is not JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl:1 is not a JSON object"),
        ("a.csv", "text,other\ra,1\rb,2\r", "its lines end with a carriage return alone, as on old Macs: convert it"),
        ("a.tsv", "text\tother\na\n", "a.tsv:2 has 1 fields, not 2; give every line all columns"),
        ("a.csv", 'other\n"one\ntwo\n', "a.csv:2: a quote is broken"),
        ("a.csv", 'other\n"one" two\n', "a.csv:2: a quote is broken"),
        ("a.tsv", "other\n", "a.tsv has no rows"),
        ("a.xlsx", "PK\x03\x04" + 50 * "\0", "a.xlsx is a spreadsheet; save its sheet as a .csv in UTF-8"),
        ("a.csv", "PK\x03\x04" + 50 * "\0", "a.csv:1 is not UTF-8: it starts like a .docx, .xlsx or .doc; save it as"),
        ("a.txt", "other\n", "a.txt is not a table; its name must end with .tsv, .csv, .jsonl or .json"),
    ],
)
def test_bad_tables_are_refused(tmp_path, name, text, complaint):
    with pytest.raises(UserError, match=complaint.replace("(", r"\(")):
        tables.read(write(tmp_path, name, text), ["other"])


def test_a_missing_file_and_an_empty_path_are_refused(tmp_path):
    with pytest.raises(UserError, match="nowhere.tsv cannot be read: No such file"):
        tables.read(str(tmp_path / "nowhere.tsv"), ["text"])
    with pytest.raises(UserError, match="examples.train or examples.heldout is empty"):
        tables.read("", ["text"])


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"text\n" + b"words\n" * 1000)[:-10])
    with pytest.raises(UserError, match="a.tsv.gz is cut short, damaged or not in the gz format"):
        tables.read(str(path), ["text"])
