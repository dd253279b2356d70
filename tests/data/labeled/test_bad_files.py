"""Bad labeled files of every format: each ends a start in one line and exit code 2, before anything is compiled."""

import gzip
import io
import json
import math

import pyarrow.parquet
import pytest

from bertjax.data.labeled.choices import Choices, Race
from bertjax.data.labeled.label_sets import LabelSets
from bertjax.data.labeled.questions import Questions
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText, RepeatedText, SiamesePairs
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError

SETTINGS = {  # {format: (objective, suffix, settings of the examples)}
    "csv": ("classification", ".csv", {"kind": "labeled_text", "text": "text"}),
    "tsv": ("classification", ".tsv", {"kind": "labeled_text", "text": "text"}),
    "numbered": ("classification", ".csv", {"kind": "labeled_text", "text": "0", "label": "2"}),
    "jsonl": ("classification", ".jsonl", {"kind": "labeled_text", "text": "text"}),
    "json": ("classification", ".json", {"kind": "labeled_text", "text": "text"}),
    "sets": ("multi_label", ".jsonl", {"kind": "label_sets", "text": "text"}),
    "columns": ("multi_label", ".csv", {"kind": "label_sets", "text": "text", "label_columns": ["yes"]}),
    "sts": ("regression", ".tsv", {"kind": "labeled_text", "text": "one", "pair": "two", "label": "score"}),
    "scores": ("regression", ".jsonl", {"kind": "labeled_text", "text": "text", "label": "score"}),
    "pairs": ("embedding_regression", ".csv", {"kind": "siamese_pairs", "text": "a", "pair": "b", "label": "score"}),
    "repeated": ("embedding_contrastive", ".txt", {"kind": "repeated_text", "label": ""}),
    "choices": ("multiple_choice", ".jsonl", {"kind": "choices"}),
    "swag": ("multiple_choice", ".csv", {"kind": "choices", "choices": ["a", "b"]}),
    "race": ("multiple_choice", "", {"kind": "race"}),
    "squad": ("question_answering", ".json", {"kind": "questions", "max_question": 8}),
    "conll": ("tagging", ".txt", {"kind": "tagged"}),
    "conllu": ("tagging", ".conllu", {"kind": "tagged"}),
}
SETTINGS |= {
    f"{name}.parquet": (SETTINGS[name][0], ".parquet", SETTINGS[name][2]) for name in ("csv", "conll", "squad")
}
EXAM = {"article": "abc cab", "questions": ["bid"], "options": [["abc", "cab", "bad", "fed"]], "answers": ["B"]}
SQUAD_QUESTION = {"id": "1", "question": "bid", "answers": [{"text": "ada", "answer_start": 4}]}
FLAT = '{"id": "1", "question": "bid", "context": "abc ada", "answers": {"text": ["ada"], "answer_start": [4]}}\n'
UD = "".join(f"{number}\tabc\tabc\t{tag}" + "\t_" * 6 + "\n" for number, tag in ((1, "NOUN"), (2, "VERB"))) + "\n"


def parquet(columns: dict[str, list]) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def lines(*records: dict) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def labeled(*labels: object) -> str:
    return lines(*({"text": "abc", "label": label} for label in labels))


def choice(**parts) -> str:
    return lines({"context": "abc", "choices": ["cab", "bad"], "label": 1} | parts)


def squad(context="abc ada", **question) -> str:
    questions = [{name: value for name, value in (SQUAD_QUESTION | question).items() if value is not ...}]
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": questions}]}]})


def exam(**parts) -> str:
    return json.dumps({name: value for name, value in (EXAM | parts).items() if value is not ...})


GOOD = {
    "csv": "text,label\nabc,yes\ncab,no\n",
    "tsv": "text\tlabel\nabc\tyes\ncab\tno\n",
    "numbered": "abc,1,yes\ncab,2,no\n",
    "jsonl": labeled("yes", "no"),
    "json": json.dumps([{"text": "abc", "label": "yes"}, {"text": "cab", "label": "no"}]),
    "sets": labeled(["yes"], "yes,no"),
    "columns": "text,yes\nabc,1\ncab,0\n",
    "sts": "one\ttwo\tscore\nabc\tcab\t2.5\nbad\tfed\t0\n",
    "scores": lines({"text": "abc", "score": 1}, {"text": "cab", "score": 2.5}),
    "pairs": "a,b,score\nabc,cab,0.5\nbad,fed,0\n",
    "repeated": "abc\ncab\n",
    "choices": choice(),
    "swag": "context,a,b,label\nabc,cab,bad,1\n",
    "race": exam(),
    "squad": squad(),
    "conll": "abc X O\nada X B-PER\n\ncab X O\n",
    "conllu": UD,
    "csv.parquet": parquet({"text": [b"abc", b"cab"], "label": ["yes", "no"]}),
    "conll.parquet": parquet({"tokens": [["abc", "ada"]], "ner_tags": [[0, 1]]}),
    "squad.parquet": parquet({name: [value] for name, value in json.loads(FLAT).items()}),
}
# (format, content of the file, part of the message)
BAD = [
    ("csv", "", "has no rows"),
    ("csv", "text,label\nabc, cab,yes\n", ":2 has 3 fields, not 2; give every line"),
    ("csv", "text,label,text\nabc,yes,cab\n", "has 2 columns 'text'; rename"),
    ("csv", "text;labels\nabc;yes\n", "has no column 'label'; it has 'text', 'labels'; rename"),
    ("csv", 'text,label\n"abc,yes\ncab,no\n', ":2: a quote is broken"),
    ("csv", 'text,label\nabc,yes\n"cab" bad,no\n', ":3: a quote is broken"),
    ("csv", "text,label\nabc,yes\ntext,label\n", ":3 has the names of the columns again; remove"),
    ("csv", "text,label\nabc,yes\n , no\n", ":3 has no text in 'text'"),
    ("csv", "text,label\nabc,yes\n".encode("utf-16"), "looks like UTF-16 and not like text in UTF-8; convert it"),
    ("csv", "text,label\ncaf\u00e9,yes\n".encode("latin-1"), ":2 is not UTF-8"),
    ("csv", "text,label\rabc,yes\rcab,no\r", "has no column 'label'; it has 'text', 'label\\rabc'"),
    ("csv", b"PK\x03\x04" + bytes(26) + b"word/a.xml", "looks like a spreadsheet or document"),
    ("csv", "," * 100_000, "has no column 'text'"),
    ("numbered", "Text,id,Label\na,1,x\n", ":1 has the names of the columns ('Text', 'Label'), and columns are gi"),
    ("tsv", "text\tlabel\nabc\t \n", "has no label in 'label' in any record; fill"),
    ("tsv", "text\tlabel\nabc\tcab\tyes\n", "or remove '\\t' in one, or set examples.quoted"),
    ("tsv", b"\x00" * 1000, "without a byte order mark: it is full of zero bytes"),
    ("jsonl", "[]\n", ":1 is not a JSON object"),
    ("jsonl", '["ada", {"entities": []}]\n["fed", {}]\n', ":1 is not a JSON object but"),
    ("jsonl", '{"text": "abc", "label": "yes"\n', ":1 is not JSON"),
    ("jsonl", "[" * 100_000 + "\n", ":1 is not JSON"),
    ("jsonl", lines({"text": "abc"}), ":1 has no column 'label'; it has 'text'"),
    ("jsonl", lines({"text": 3, "label": "yes"}), ":1 has no text in 'text'"),
    ("jsonl", lines({"text": "a \ud800 b", "label": "yes"}), ":1: text holds a lone surrogate"),
    ("jsonl", labeled(None, math.nan, "-", ""), "has no label in 'label' in any record"),
    ("jsonl", labeled(["yes"]), """:1 has the label "['yes']" in 'label', which is"""),
    ("jsonl", labeled(1, 0, True), ":3 has the label 'True' in 'label', which is true or false"),
    ("json", '{"text": "a"\n', "is not JSON"),
    ("json", b'[{"text": "a", "label": "yes", "note": "\xed\xa0\x80"}]', "is not UTF-8"),
    ("json", '{"data": []}', "is not an array of objects: it is"),
    ("sts", "one\ttwo\tscore\nabc\tcab\thigh\n", ":2 has the label 'high', which is not a number"),
    ("scores", lines({"text": "abc", "score": math.inf}), ":1 has the label inf, which is not a number"),
    ("scores", '{"text": "abc", "score": 1' + "0" * 400 + "}\n", "which is not a number"),
    ("scores", lines({"text": "abc", "score": {"a": 1}}), "write a text or a number"),
    ("repeated", " \n\n", "has no text; give"),
    ("sets", lines({"text": "abc", "label": {"a": 1}}), ":1 has the labels \"{'a': 1}\" in 'label'; write an array"),
    ("sets", labeled("a", "['a', 'b']"), "'; write an array of names, or names with ',' between"),
    ("columns", "text,yes\nabc,1\nbcd,2\n", ":3 has '2' in 'yes'; write 1"),
    ("choices", choice(choices="abc"), ":1 has 1 choices, and most records have 1; give"),
    ("choices", choice(choices=["a", " "]), ":1 has no text in 'choices'"),
    ("choices", choice(choices=["a", "\ud800"]), ": choices holds a lone surrogate"),
    ("choices", choice(label=2), ":1 has the label 2; write the number of the right choice, 0 to 1"),
    ("choices", choice(label=None), ":1 has the label None"),
    ("choices", choice() + choice() + choice(choices=["a"] * 3), ":3 has 3 choices, and most records have 2; give"),
    ("swag", "context,a,b,label\nabc,cab,,1\n", ":2 has no text in 'b'"),
    ("race", "[]", "has no text 'article'; write a JSON object"),
    ("race", exam(questions=[None]), "questions[0] is (None, "),
    ("race", exam(questions=["\udcff"]), "questions[0] holds a lone surrogate"),
    ("race", exam(answers=["E"]), "an answer of A, B, C, D"),
    ("race", exam(answers=...), "has no list 'answers'"),
    ("squad", '{"data": {}}', "has no list 'data'; give"),
    ("squad", '{"data": []}', "has no questions; give"),
    ("squad", '{"data": [{"paragraphs": [{"qas": []}]}]}', "data[0].paragraphs[0] has no text 'context'"),
    ("squad", squad(context="a \ud800 b"), "context holds a lone surrogate"),
    ("squad", squad(question=" "), "qas[0] has no text 'question'"),
    ("squad", squad(id="\ud800"), "id holds a lone surrogate"),
    ("squad", squad(answers=[{"text": "ada", "answer_start": 10**30}]), "is not in the context at its answer_start"),
    ("squad", squad(answers=[{"text": "a", "answer_start": -3}]), "is not in the context at its answer_start; fix"),
    ("squad", squad(answers=[{"text": "ada", "answer_start": "0"}]), "answers[0] has no number 'answer_start'"),
    ("squad", squad(answers=[]), "has no answer; add"),
    ("squad", squad(is_impossible="no"), "has no true or false 'is_impossible'"),
    ("squad", squad(context="\u200b \u200b", is_impossible=True), "has a context without tokens"),
    ("squad", FLAT + lines({"question": "bid"}), ":2 has no text 'context'"),
    ("squad", FLAT + FLAT.replace('["ada"]', '"ada"'), ":2 has no list 'text'; write"),
    ("conll", "", "has no record that can be used"),
    ("conll", "\n-DOCSTART- O\n\n", "has no record that can be used; give"),
    ("conll", "abc\tX\tO\n\n\tX\tO\n", ":3 has no word"),
    ("conll", "abc X O\n\ncab X O\n\nX O\n", ":5 has 2 columns between spaces, and most lines have 3; correct"),
    ("conll", "abc O\ncab O\n\n\u200b\n", ":4 has 1 columns"),
    ("conll", "abc O\rcab O\r", ":1 has a carriage return; end"),
    ("conll", "Word\tTag\nabc\tO\n\ncab\tO\n", ":1 has the tag 'Tag', as no other line has, and looks like"),
    ("conll", "abc\ncab\n", ":1 has 1 columns, so examples.word=0 and examples.tag=-1 are the same one; sep"),
    ("conll", lines({"text": "ada", "label": [[0, 3, "PER"]]}), "spans of characters, as tools of annotation write"),
    ("conll", lines({"tokens": [{"text": "ada"}], "spans": [{"start": 0}]}), 'write {"tokens": ["Ada", "ran"], "tags"'),
    ("conll", '{"tokens": ["abc"]}\n', ":1 has no list of tags, only 'tokens'; set examples.tag_field"),
    ("conll", lines({"tokens": ["abc"], "a": ["O"], "b": ["O"]}), "has several lists of tags, 'a', 'b'; set"),
    ("conll", lines({"tokens": ["a"], "tags": ["O"]}, {"tokens": ["a"], "tags": []}), ":2 has 0 tags in 'tags' and"),
    ("conll", lines({"tokens": ["a"], "tags": ["O"]}, {"tokens": [], "tags": []}), ":2 has no list of words"),
    ("conll", lines({"tokens": ["abc"], "tags": [0.5]}), ":1 has the tag '0.5'; write"),
    ("conll", "abc\tO\ncab\t\n", ":2 has no tag"),
    ("conll", "abc\tO\ncab\t-100\n", ":1 has the tag -100"),
    ("conll", lines({"tokens": ["abc", "cab"], "ner_tags": [0, -1]}), ":1 has the tag -1, which marks ignored pieces"),
    ("conll", UD * 2 + "3\tx\n", ":7 has 2 columns between tabs, not 10; correct"),
    ("conllu", "# text = a\n\n", "has no sentences of CoNLL-U that can be used; give"),
    ("conllu", UD.replace("\t", " "), ":1 has 1 columns between tabs, not 10; correct"),
    ("conllu", UD.replace("1\t", "x\t", 1), ":1 is not CoNLL-U ('x' is not a valid ID"),
    ("conllu", UD.replace("\tabc\t", "\t\t", 1), ":1 has no word"),
    ("conllu", UD.replace("NOUN", "_").replace("VERB", "_"), "has no word with examples.conllu=upos; choose"),
]
IDS = [f"{name}-{complaint}" for name, _, complaint in BAD]  # the contents are too long


@pytest.fixture
def start(open_files, capsys):
    """start(format, training, heldout, **settings) -> (exit code, lines of stderr), up to the first compilation."""

    def run(name: str, training: str | bytes, heldout: str | bytes, **changes) -> tuple[int, list[str]]:
        objective, suffix, settings = SETTINGS[name]

        def program() -> None:
            open_files({"kind": objective}, suffix, training, heldout, **settings | changes)

        code = command_line.exit_code_of(program)
        return code, capsys.readouterr().err.splitlines()

    return run


@pytest.mark.parametrize("name", SETTINGS)
def test_the_good_file_of_each_format_is_read(start, name):
    assert start(name, GOOD[name], GOOD[name]) == (0, [])


@pytest.mark.parametrize("number", range(len(BAD)), ids=IDS)
def test_a_bad_file(start, number):
    """In training and held out by turns; if bad records are skipped, the rest is read, or one line says why not."""
    name, content, complaint = BAD[number]
    files = [GOOD[name], content] if number % 2 else [content, GOOD[name]]
    code, error = start(name, *files)
    assert code == 2 and len(error) == 1, error
    assert error[0].startswith("error: ") and complaint in error[0] and len(error[0]) < 600, error[0]
    code, output = start(name, *files, on_bad_record="skip")
    assert code in (0, 2) and sum(line.startswith("error: ") for line in output) == (code == 2), output
    assert all(line.startswith(("error: ", "skipped: ")) or "records skipped" in line for line in output), output


@pytest.mark.parametrize(
    "name, content, skipped, total",
    [
        ("tsv", "text\tlabel\nabc\tyes\n2\na\tb\tc\n \tno\n\ncab\tno\n", 3, 5),
        ("choices", choice(choices=["a"] * 3) + choice(label=7) + lines({"context": "abc"}) + choice() * 2, 3, 5),
        ("race", exam(questions=["a", "b"], options=[["a"] * 4] * 2, answers=["E", "A"]), 1, 2),
        ("squad", FLAT + FLAT.replace(": [4]", ": [3]") + FLAT.replace("ada", "\u0061\u0301da", 1), 2, 3),
        ("conll", "a X O\nb\nc X O\n\nd X O\ne X B-PER\n\nf\n", 2, 3),
        ("conllu", UD.replace("\tNOUN", "", 1) + UD, 1, 2),
    ],
)
def test_bad_records_are_skipped_and_counted(start, name, content, skipped, total):
    """Most records set the form, such as the number of choices, even if the first one has another."""
    code, output = start(name, content, GOOD[name], on_bad_record="skip")
    assert code == 0 and output[-1].endswith(f"{skipped} of {total} records skipped (examples.on_bad_record=skip)")


@pytest.mark.parametrize(
    "make, complaint",
    [
        (lambda: Choices(choices=("a", "")), "examples.choices.1 is empty; name a column"),
        (lambda: LabeledText(heldout=1.5), "examples.heldout=1.5 must be a file, or a share between 0 and 1"),
        (lambda: LabelSets(separator=""), "examples.separator is empty"),
        (lambda: Questions(max_question=0), "examples.max_question=0 must be"),
        (lambda: Questions(on_bad_record="ask"), "examples.on_bad_record='ask' is unknown; choose"),
        (lambda: RepeatedText(train="a", heldout="a"), "examples.train and examples.heldout are both a"),
        (lambda: SiamesePairs(pair=""), "examples.pair is empty; name"),
        (lambda: Tagged(folds=2), "examples.folds=2 has no effect on examples.kind=tagged; remove it"),
        (lambda: RepeatedText(heldout=0.2), "heldout=0.2 divides the training file, which examples.kind=repeated_text"),
        (lambda: Tagged(units="letters"), "examples.units='letters' is unknown; choose"),
        (lambda: Tagged(conllu="deprel"), "examples.conllu='deprel' is not a tag of CoNLL-U; choose"),
        (lambda: Race().with_columns({"label": "x"}), "--label=x has no effect on a model of examples.kind=race"),
        (lambda: Tagged().read(""), "examples.train or examples.heldout is empty; name"),
    ],
)
def test_bad_settings_are_refused(make, complaint):
    with pytest.raises(UserError, match=complaint):
        make()


@pytest.mark.parametrize(
    "name, settings, complaint",
    [
        ("conllu", {"comment": "##"}, "examples.comment=## has no effect on"),
        ("conllu", {"tag": 3}, "examples.tag=3 has no effect on"),
        ("conll", {"conllu": "xpos"}, "examples.conllu=xpos has no effect on"),
        ("conll", {"word": -4}, "has 3 columns, but examples.word=-4; correct it"),
        ("csv", {"label": "other"}, "has no column 'other'; it has 'text', 'label'"),
        ("squad", {"max_question": 64}, "has no room for a context after examples.max_question=64"),
    ],
)
def test_settings_that_do_not_fit_the_file(start, name, settings, complaint):
    code, [error] = start(name, GOOD[name], GOOD[name], **settings)
    assert code == 2 and complaint in error


@pytest.mark.parametrize(
    "name, column, setting",
    [("csv", "probabilities", "label"), ("csv", "prediction", "text"), ("pairs", "cosine", "label")]
    + [("csv", "fold", "label"), ("csv", "line", "label"), ("choices", "accepted", "label")],
)
def test_no_answer_overwrites_a_column(start, name, column, setting):
    of_folds = {"folds": 2} if column in ("fold", "line") else {}
    content = GOOD[name].replace(SETTINGS[name][2].get(setting, setting), column)
    code, error = start(name, content, content, **{setting: column} | of_folds)
    assert code == 2 and len(error) == 1 and f"the column {column!r}" in error[0] and "; rename" in error[0]


@pytest.mark.parametrize(
    "path, complaint",
    [
        ("cut.tsv.gz", "is cut short, damaged or not in the gz format"),
        ("nowhere.tsv", "nowhere.tsv cannot be read"),
        ("folder.tsv", "cannot be read: Is a directory"),
        ("https://example.org/a.tsv", "https://example.org/a.tsv is a URL, which is not opened here; download"),
        ("file:///data/a.tsv", "; name /data/a.tsv"),
        ("cut.txt", "is not a table; its name must end in .tsv"),
        ("a.xlsx", "a.xlsx looks like a spreadsheet or document and not like text in UTF-8; save"),
        ("a.csv.zip", "a.csv.zip looks like a .zip archive"),
        ("pointer.csv", "looks like a pointer of Git LFS"),
        ("a.parquet", "a.parquet: object 1 has no column 'text'; it has 'words'"),
    ],
)
def test_a_file_that_cannot_be_read(start, tmp_path, path, complaint):
    (tmp_path / "cut.tsv.gz").write_bytes(gzip.compress(GOOD["tsv"].encode() * 1000)[:-10])
    (tmp_path / "cut.txt").write_text(GOOD["tsv"])
    (tmp_path / "folder.tsv").mkdir()
    (tmp_path / "a.xlsx").write_bytes(b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml")
    (tmp_path / "a.csv.zip").write_bytes(b"PK\x03\x04" + bytes(26) + b"a.csv")
    (tmp_path / "pointer.csv").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    (tmp_path / "a.parquet").write_bytes(parquet({"words": ["abc"], "label": ["a"]}))
    code, [error] = start("tsv", GOOD["tsv"], GOOD["tsv"], train=path if "://" in path else str(tmp_path / path))
    assert code == 2 and complaint in error
