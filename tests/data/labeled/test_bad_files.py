"""Bad labeled files of every format: each ends a start in one line and exit code 2, before anything is compiled."""

import gzip
import json
import math

import pytest

from bertjax.config.config import from_dict
from bertjax.runtime import command_line
from bertjax.training.resolve import open_feeds
from tests import labeled_files

SETTINGS = {  # {format: (objective, suffix, settings of the examples)}
    "csv": ("classification", ".csv", {"kind": "labeled_text", "text": "text"}),
    "tsv": ("classification", ".tsv", {"kind": "labeled_text", "text": "text"}),
    "jsonl": ("classification", ".jsonl", {"kind": "labeled_text", "text": "text"}),
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
EXAM = {"article": "abc cab", "questions": ["bid"], "options": [["abc", "cab", "bad", "fed"]], "answers": ["B"]}
SQUAD_QUESTION = {"id": "1", "question": "bid", "answers": [{"text": "ada", "answer_start": 4}]}
WORD = "1\tabc\tabc\tNOUN" + "\t_" * 6 + "\n"
LONG = 2 * 131_072


def lines(*records: dict) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def labeled(*labels: object) -> str:
    return lines(*({"text": "abc", "label": label} for label in labels))


def squad(context="abc ada", **question) -> str:
    questions = [{name: value for name, value in (SQUAD_QUESTION | question).items() if value is not ...}]
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": questions}]}]})


def exam(**parts) -> str:
    return json.dumps({name: value for name, value in (EXAM | parts).items() if value is not ...})


GOOD = {
    "csv": "text,label\nabc,yes\ncab,no\n",
    "tsv": "text\tlabel\nabc\tyes\ncab\tno\n",
    "jsonl": lines({"text": "abc", "label": "yes"}, {"text": "cab", "label": "no"}),
    "sts": "one\ttwo\tscore\nabc\tcab\t2.5\nbad\tfed\t0\n",
    "scores": lines({"text": "abc", "score": 1}, {"text": "cab", "score": 2.5}),
    "pairs": "a,b,score\nabc,cab,2.5\nbad,fed,0\n",
    "repeated": "abc\ncab\n",
    "choices": lines({"context": "abc", "choices": ["cab", "bad"], "label": 1}),
    "swag": "context,a,b,label\nabc,cab,bad,1\n",
    "race": exam(),
    "squad": squad(),
    "conll": "abc X O\nada X B-PER\n\ncab X O\n",
    "conllu": WORD + WORD.replace("1\t", "2\t").replace("NOUN", "VERB") + "\n",
}
# (format, content of the file, part of the message)
BAD = [
    ("csv", "", "has no rows"),
    ("csv", "text,label\n", "has no rows"),
    ("csv", "text,label\nabc, cab,yes\n", ":2 has 3 fields, not 2; write a field with a comma in double quotes"),
    ("csv", "text,label\nabc\n", ":2 has 1 fields, not 2; give every line all columns"),
    ("csv", "text,label,text\nabc,yes,cab\n", "has 2 columns 'text'; rename all but one of them"),
    ("csv", "text;labels\nabc;yes\n", "has no column 'label'; it has 'text', 'labels'; rename a column"),
    (
        "csv",
        "a comic book,comedy\nold news,news\n",
        "rename a column, name one of these, or give the numbers of all, counted from 0",
    ),
    ("csv", 'text,label\n"abc,yes\ncab,no\n', ":2: a quote is broken"),
    ("csv", 'text,label\nabc,yes\n"cab" bad,no\n', ":3: a quote is broken"),
    ("csv", "text,label\nabc,\n", "has no label in 'label' in any record; fill them in, or name another file"),
    ("csv", "text,label\nabc,yes\n , no\n", ":3 has no text in 'text'"),
    ("csv", "text,label\nabc,yes\n".encode("utf-16"), ":1 is not UTF-8: its byte 0 is 0xff; it starts like UTF-16"),
    ("csv", "text,label\ncaf\u00e9,yes\n".encode("latin-1"), ":2 is not UTF-8"),
    ("csv", "text,label\rabc,yes\rcab,no\r", "has no column 'label'"),
    ("csv", "," * 100_000, "has no column 'text'"),
    ("tsv", "text\tlabel\nabc\n", ":2 has 1 fields, not 2; give every line all columns, or set examples.quoted"),
    ("tsv", "text\tlabel\tlabel\nabc\tyes\tno\n", "has 2 columns 'label'"),
    ("tsv", "text label\nabc yes\n", "has no column 'text'"),
    ("tsv", "text\tlabel\nabc\t \n", "has no label in 'label' in any record"),
    ("tsv", "text\tlabel\nabc\tcab\tyes\n", ":2 has 3 fields, not 2; remove a tab that is inside of a field"),
    ("tsv", b"\x00" * 1000, "is not UTF-8: 1,000 of 1,000 bytes are zero"),
    ("tsv", "\n\n\n", "has no rows"),
    ("jsonl", "", "has no rows"),
    ("jsonl", "[]\n", ":1 is not a JSON object"),
    ("jsonl", '{"text": "abc", "label": "yes"\n', ":1 is not JSON"),
    ("jsonl", "[" * 100_000 + "\n", ":1 is not JSON"),
    ("jsonl", '{"text": "abc", "label": ' + "1" * 5_000 + "}\n", ":1 is not JSON"),
    ("jsonl", lines({"text": "abc"}), ":1 has no field 'label'"),
    ("jsonl", lines({"text": 3, "label": "yes"}), ":1 has no text in 'text'"),
    ("jsonl", lines({"text": None, "label": "yes"}), ":1 has no text in 'text'"),
    ("jsonl", lines({"text": "a \ud800 b", "label": "yes"}), ":1: text holds a lone surrogate"),
    ("jsonl", labeled("\udfff"), ":1: label holds a lone surrogate"),
    ("jsonl", labeled(None, math.nan, "-", ""), "has no label in 'label' in any record"),
    ("jsonl", labeled(["yes"]), """:1 has the label "['yes']" in 'label'; write a text or"""),
    ("jsonl", labeled(1, 1.0, "1"), ":3 has the label '1', which is a text, and other labels of the file are a number"),
    ("jsonl", labeled(1, 0, True), ":3 has the label 'True', which is true or false"),
    ("sts", "one\ttwo\tscore\nabc\tcab\thigh\n", ":2 has the label 'high', which is not a number"),
    ("sts", "one\ttwo\tscore\nabc\tcab\tnan\n", ":2 has the label 'nan', which is not a number"),
    ("sts", "one\ttwo\tscore\nabc\tcab\t\n", "has no label in 'score' in any record"),
    ("sts", "one\ttwo\tscore\nabc\t\t3\n", ":2 has no text in 'two'"),
    ("sts", "one\tscore\nabc\t3\n", "has no column 'two'"),
    ("scores", lines({"text": "abc", "score": math.inf}), ":1 has the label inf, which is not a number"),
    ("scores", '{"text": "abc", "score": 1' + "0" * 400 + "}\n", "which is not a number"),
    ("scores", lines({"text": "abc", "score": {"a": 1}}), "write a text or a number"),
    ("pairs", "a,b,score\nabc,cab\n", ":2 has 2 fields, not 3"),
    ("pairs", "a,b,score\nabc, cab, bad,3\n", ":2 has 4 fields, not 3"),
    ("pairs", "a,b,score\nabc,cab,1e999\n", ":2 has the label '1e999', which is not a number"),
    ("pairs", "a,a,b,score\nabc,bad,cab,3\n", "has 2 columns 'a'"),
    ("repeated", " \n\n", "has no lines of text"),
    ("repeated", b"abc\n\xff\n", ":2 is not UTF-8"),
    ("choices", lines({"context": "abc", "choices": [], "label": 0}), ":1 has 0 choice"),
    ("choices", lines({"context": "abc", "choices": {"a": "b"}, "label": 0}), ":1 has 1 choice"),
    ("choices", lines({"context": "abc", "choices": ["a", "\ud800"], "label": 0}), ": choices holds a lone surrogate"),
    ("choices", lines({"context": "abc", "choices": ["a", "b"], "label": 2}), ":1 has the label 2"),
    ("choices", lines({"context": "abc", "choices": ["a", "b"], "label": 0.5}), ":1 has the label 0.5"),
    ("choices", lines({"context": "abc", "choices": ["a", "b"], "label": None}), ":1 has the label None"),
    ("swag", "context,a,b,label\nabc,cab,bad,1,\n", ":2 has 5 fields, not 4"),
    ("swag", "context,a,b,label\nabc,cab,,1\n", ":2 has no text in 'b'"),
    ("swag", "context,a,b,label\nabc,cab,bad,b\n", ":2 has the label 'b'"),
    ("race", "", "is not JSON"),
    ("race", "[" * 100_000, "is not JSON that can be read"),
    ("race", exam(article="a \udcff"), "article holds a lone surrogate"),
    ("race", exam(questions=["\udcff"]), "questions[0] holds a lone surrogate"),
    ("race", exam(options=[["a", "b", "c"]]), "options[0] must be a list of 4 texts"),
    ("race", exam(answers=["E"]), "answers[0] is 'E'"),
    ("race", exam(answers=...), "must have lists 'questions', 'options' and 'answers' of one length"),
    ("race", b"\xff" + exam().encode(), "is not UTF-8"),
    ("squad", "", "is not JSON"),
    ("squad", "{" * 100, "is not JSON"),
    ("squad", "[" * 100_000, "is not JSON that can be read"),
    ("squad", '{"version": ' + "1" * 5_000 + "}", "is not JSON that can be read"),
    ("squad", '{"data": {}}', "has no list 'data'"),
    ("squad", squad(context="a \ud800 b"), "context holds a lone surrogate"),
    ("squad", squad(question="\ud800"), "question holds a lone surrogate"),
    ("squad", squad(id="\ud800"), "id holds a lone surrogate"),
    ("squad", squad(question=...), "has no text 'question'"),
    ("squad", squad(answers=[{"text": "ada", "answer_start": 1}]), "is not in the context at its answer_start"),
    ("squad", squad(answers=[{"text": "ada", "answer_start": 10**30}]), "is not in the context at its answer_start"),
    ("squad", squad(answers=[]), "has no answer"),
    ("squad", squad(context="\u200b \u200b", is_impossible=True), "has a context without tokens"),
    ("conll", "", "has no sentences"),
    ("conll", "abc\tX\tO\n\n\tX\tO\n", ":3 has no word"),
    ("conll", "abc X O\n\ncab X O\n\nX O\n", ":5 has 2 columns between spaces, and most lines have 3"),
    ("conll", "abc\ncab\n", ":1 has 1 columns, so examples.word=0 and examples.tag=-1 are the same one; give a file"),
    ("conll", "word,tag\nabc,O\n", "are the same one; separate columns by tabs or spaces, not by ','"),
    ("conll", '{"id": 3}\n', ":1 has no list of words in 'tokens' or 'words', it has 'id'"),
    ("conll", '{"tokens": ["abc"]}\n', ":1 has no list of tags, only 'tokens'; set examples.tag_field"),
    (
        "conll",
        '{"tokens": ["abc"], "a": ["O"], "b": ["O"]}\n',
        "has several lists of tags, 'a', 'b'; set examples.tag_f",
    ),
    (
        "conll",
        lines({"tokens": ["abc"], "tags": ["O"]}, {"tokens": ["abc"], "tags": []}),
        ":2 has 0 tags in 'tags' and",
    ),
    ("conll", lines({"tokens": [""], "tags": ["O"]}), ":1 has no list of words in 'tokens'"),
    ("conll", lines({"tokens": ["abc"], "tags": [0.5]}), ":1 has the tag '0.5'; write texts or numbers"),
    ("conll", "abc\tO\ncab\t\n", ":2 has no tag"),
    ("conll", "abc\tO\ncab\t-100\n", ":1 has the tag -100"),
    ("conll", lines({"tokens": ["abc", "cab"], "ner_tags": [0, -100]}), ":1 has the tag -100"),
    ("conll", b"abc O\n\xff O\n", ":2 is not UTF-8"),
    ("conllu", "", "has no sentences that can be used"),
    ("conllu", WORD.replace("\t", " "), ":1 has 1 columns between tabs, not 10"),
    ("conllu", WORD.replace("1\t", "x\t", 1), ":1 is not CoNLL-U"),
    ("conllu", WORD.replace("\tabc\t", "\t\t", 1), ":1 has no word"),
    ("conllu", WORD.replace("NOUN", "_"), "has no word with examples.conllu=upos"),
    ("conllu", WORD.encode("utf-16"), "is not UTF-8"),
]
IDS = [f"{name}-{complaint}" for name, _, complaint in BAD]  # the contents are too long


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> str:
    return str(labeled_files.vocabulary(tmp_path_factory.mktemp("vocabulary") / "vocab.txt"))


@pytest.fixture
def start(tmp_path, vocabulary, capsys):
    """start(format, training, heldout, **settings) -> (exit code, lines of stderr), up to the first compilation."""

    def write(split: str, name: str, content: str | bytes) -> str:
        path = tmp_path / f"{split}{SETTINGS[name][1]}"
        content = content.encode() if isinstance(content, str) else content
        if name == "race":
            path.mkdir()
            (path / "1.txt").write_bytes(content)
        else:
            path.write_bytes(content)
        return str(path)

    def run(name: str, training: str | bytes, heldout: str | bytes, **changes) -> tuple[int, list[str]]:
        objective, _, settings = SETTINGS[name]
        files = {"train": write("train", name, training), "heldout": write("dev", name, heldout)}
        config = {
            "data": {"tokenizer": {"model": vocabulary, "lowercase": True}},
            "tasks": {"toy": {"objective": {"kind": objective}, "examples": files | settings | changes}},
            "optimizer": {"warmup_share": 0.1},
            "stages": [{"epochs": 1.0, "seq_len": 64, "examples": 4}],
        }
        code = command_line.exit_code_of(lambda: open_feeds(from_dict(config)).plan())
        return code, capsys.readouterr().err.splitlines()

    return run


@pytest.mark.parametrize("name", SETTINGS)
def test_the_good_file_of_each_format_is_read(start, name):
    assert start(name, GOOD[name], GOOD[name]) == (0, [])


@pytest.mark.parametrize("split", ["training", "heldout"])
@pytest.mark.parametrize("name, content, complaint", BAD, ids=IDS)
def test_a_bad_file(start, name, content, complaint, split):
    files = {"training": GOOD[name], "heldout": GOOD[name]} | {split: content}
    code, error = start(name, **files)
    assert code == 2 and len(error) == 1, error
    assert error[0].startswith("error: ") and complaint in error[0] and len(error[0]) < 600, error[0]


@pytest.mark.parametrize("name, content, complaint", BAD, ids=IDS)
def test_bad_records_are_skipped_or_refused_in_one_line(start, name, content, complaint):
    code, lines = start(name, content, GOOD[name], on_bad_record="skip")
    assert code in (0, 2)
    assert sum(line.startswith("error: ") for line in lines) == (code == 2), lines
    assert all(line.startswith(("error: ", "skipped: ")) or "records skipped" in line for line in lines), lines


@pytest.mark.parametrize(
    "name, column, setting",
    [("csv", name, "label") for name in ("prediction", "probabilities", "accepted", "suggested", "label_probability")]
    + [("csv", "prediction", "text"), ("sts", "prediction", "label"), ("pairs", "cosine", "label")]
    + [("csv", "fold", "label"), ("csv", "line", "label"), ("choices", "prediction", "label")],
)
def test_no_answer_overwrites_a_column(start, name, column, setting):
    of_folds = {"folds": 2, "fold": 0} if column in ("fold", "line") else {}
    content = GOOD[name].replace(SETTINGS[name][2].get(setting, setting), column)
    code, error = start(name, content, content, **{setting: column} | of_folds)
    assert code == 2 and len(error) == 1 and f"the column {column!r}" in error[0] and "; rename" in error[0]


@pytest.mark.parametrize(
    "name, rows", [("csv", "label,text\nyes,{}\nno,cab\n"), ("tsv", "label\ttext\nyes\t{}\nno\tcab\n")]
)
@pytest.mark.parametrize("text", ["a" * LONG, "abc \r cab", "abc\x00cab", "abc \v\f\x1c\u2028 cab"])
def test_unusual_texts_are_read(start, name, rows, text):
    assert start(name, rows.format(text), rows.format(text))[0] == 0


@pytest.mark.parametrize(
    "path, complaint",
    [
        ("cut.tsv.gz", "is cut short, damaged or not in the gz format"),
        ("nowhere.tsv", "nowhere.tsv cannot be read"),
        (".", "cannot be read: Is a directory"),
        ("cut.txt", "is not a table"),
        ("folder.tsv", "folder.tsv cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read(start, tmp_path, path, complaint):
    (tmp_path / "cut.tsv.gz").write_bytes(gzip.compress(GOOD["tsv"].encode() * 1000)[:-10])
    (tmp_path / "cut.txt").write_text(GOOD["tsv"])
    (tmp_path / "folder.tsv").mkdir()
    code, [error] = start("tsv", GOOD["tsv"], GOOD["tsv"], train=str(tmp_path / path))
    assert code == 2 and complaint in error
