"""Questions and answers: SQuAD's JSON, windows, the places of answers, and errors in files."""

import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.config.config import Task
from bertjax.data.labeled.base import WHERE
from bertjax.data.labeled.choices import Race
from bertjax.data.labeled.label_sets import LabelSets
from bertjax.data.labeled.questions import ANSWER, NO_ANSWER, Questions
from bertjax.objectives.finetuning.labels import Classification, MultiLabel
from bertjax.runtime.errors import UserError
from tests.labeled_files import file_of


def question(context, answer="", start=None, wording="who", **fields):
    start = context.index(answer) if start is None else start
    answers = [{"text": answer, "answer_start": start}] if answer else []
    return {"question": wording, "context": context, "answers": answers} | fields


def squad(*records):
    """A file with these questions, one paragraph each."""
    paragraphs = [{"context": record.pop("context"), "qas": [{"id": "q", **record}]} for record in records]
    return {"version": "2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}


def write(folder, content):
    return file_of(folder, "train.json", content if isinstance(content, str) else json.dumps(content))


def answer_of(examples, window):
    """The characters from the first to the last labeled token."""
    ragged, record = examples.ragged, examples.records[examples.record_of[window]]
    first, last = (ragged.offsets[window] + ragged.labels[name][window] for name in ("start", "end"))
    return record["context"][ragged.token_labels["begin"][first] : ragged.token_labels["stop"][last]]


def test_both_versions_of_squad_are_read(tmp_path):
    impossible = question("of bo") | {"is_impossible": True, "plausible_answers": [{"text": "bo", "answer_start": 3}]}
    path = write(tmp_path, squad(question("ann ran.", "ann"), impossible))
    places = [f"{path}:data[0].paragraphs[{number}].qas[0]" for number in range(2)]
    entry = {"id": "q", "question": "who"}
    assert Questions().read(path) == [
        entry | {"context": "ann ran.", "answers": [{"text": "ann", "answer_start": 0}], WHERE: places[0]},
        entry | {"context": "of bo", "answers": [], WHERE: places[1]},
    ]
    assert Questions().class_counts(Questions().read(path)) == {ANSWER: 1, NO_ANSWER: 1}


def test_the_file_of_a_benchmark_is_read_to_predict(tmp_path):
    """Nested or flat, with answers or without; JSON lines are read as any records are."""
    entry = {"id": 7, "question": "who", "context": "ann ran."}
    nested = [{"paragraphs": [{"context": "ann ran.", "qas": [{"id": 7, "question": "who"}]}]}]
    for data in (nested, [entry], [entry | {"answers": {"text": ["x"], "answer_start": [9]}}]):
        [record] = Questions().read_unlabeled(write(tmp_path, json.dumps({"data": data})), ())
        assert {name: record[name] for name in record if name != WHERE} == entry | {"id": "7"}
    del entry["id"]
    assert Questions().read_unlabeled(write(tmp_path, json.dumps({"data": [entry]})), ())[0]["id"] == "data[0]"
    for content in (json.dumps(entry), json.dumps([entry]), "{"):
        assert Questions().read_unlabeled(write(tmp_path, content), ()) is None
    with pytest.raises(UserError, match=r"data\[1\] has no text 'context'"):
        Questions().read_unlabeled(write(tmp_path, json.dumps({"data": [entry, {"question": "who"}]})), ())


@settings(deadline=None)
@given(
    before=st.text("ab \u00e9", max_size=60),
    answer=st.text("cd", min_size=1, max_size=8),
    after=st.text("ab \uac00", max_size=60),
    seq_len=st.integers(12, 40),
    stride=st.integers(1, 40),
    form=st.sampled_from(["NFC", "NFD"]),
)
def test_windows_contain_the_answer_or_point_to_cls(spelling, before, answer, after, seq_len, stride, form):
    context = unicodedata.normalize(form, f"{before} {answer} {after}")
    examples = Questions(stride=stride, max_question=5).encode(
        [question(context, answer)], spelling, seq_len, (ANSWER,)
    )
    ragged = examples.ragged
    assert ragged.lengths.max() <= seq_len
    counted = np.zeros(len(context), int)
    for window in range(len(examples)):
        tokens = slice(*ragged.offsets[window : window + 2])
        begin, stop, most = (ragged.token_labels[name][tokens] for name in ("begin", "stop", "most_context"))
        for place in np.flatnonzero(most):
            counted[begin[place] : stop[place]] += 1
        whole = begin[begin >= 0].min() <= context.index(answer) and stop.max() >= context.index(answer) + len(answer)
        if whole:
            assert answer_of(examples, window) == answer
        else:
            assert ragged.labels["start"][window] == ragged.labels["end"][window] == 0
    assert all(count == (not character.isspace()) for count, character in zip(counted, context) if character.isascii())


EXAM = {
    "id": "high1.txt",
    "article": "ann met bo . they ran .",
    "questions": ["who ran", "ann met _ ."],
    "options": [["ann", "bo", "both", ""], ["bo", "li", "oslo", "x"]],
    "answers": ["C", "A"],
}


def test_every_question_of_every_level_is_a_record(tmp_path, monkeypatch):
    (tmp_path / "middle").mkdir()
    (tmp_path / "high").mkdir()
    file_of(tmp_path / "middle", "2.txt", json.dumps(EXAM))
    path = file_of(tmp_path / "high", "10.txt", json.dumps(EXAM))
    file_of(tmp_path, "readme.md", "notes of mine")
    file_of(tmp_path / "high", "._10.txt", "a copy's metadata")
    records = Race().read(str(tmp_path))
    assert len(records) == 4 and records[0] == {
        "article": EXAM["article"],
        "question": "who ran",
        **{"A": "ann", "B": "bo", "C": "both", "D": ""},
        "answer": 2,
        WHERE: f"{path}: questions[0]",
    }
    assert [record["answer"] for record in records] == [2, 0, 2, 0]
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert Race().read(f"~/{tmp_path.name}") == records
    assert len(Race().read(str(tmp_path / "middle"))) == 2
    assert Race().class_counts(records) == {"0": 2, "1": 0, "2": 2, "3": 0}


CLASSES = ("a", "b", "c")


def jsonl(folder, labels):
    lines = [json.dumps({"text": f"text {number}", "label": value}) for number, value in enumerate(labels)]
    return file_of(folder, "rows.jsonl", "\n".join(lines))


@pytest.mark.parametrize(
    "values, expected",
    [
        ([[1, 0, 0, 1], [0, 1, 0, 0]], [["0", "3"], ["1"]]),
        ([[1.0, 0.0], [0.0, 0.0]], [["0"], []]),
        ([[0, 1], [1, 0]], [["1"], ["0"]]),
        ([[True, False], [True, True]], [["0"], ["0", "1"]]),
        (["0,1,0", "1,1,0"], [["1"], ["0", "1"]]),
        (["0 1 0", "[1, 1, 0]"], [["1"], ["0", "1"]]),
        ([[0], [1], [0, 1]], [["0"], ["1"], ["0", "1"]]),
        ([[0, 1], [0, 1]], [["0", "1"], ["0", "1"]]),
        ([[1, 2], [2, 1]], [["1", "2"], ["2", "1"]]),
    ],
)
def test_vectors_of_ones_and_zeros_are_read_as_their_places_and_lists_of_numbers_as_names(tmp_path, values, expected):
    assert [record["label"] for record in LabelSets(text="text").read(jsonl(tmp_path, values))] == expected


@pytest.mark.parametrize("odd", [[1, 0], [1, 0, -100], None, [], "1 0 0 1"])
def test_one_odd_label_does_not_make_names_of_vectors(tmp_path, odd):
    values = [[1, 0, 0], odd, [0, 1, 1]]
    with pytest.raises(UserError, match="rows.jsonl:2 has .* in 'label', where others have 3 numbers 0 or 1"):
        LabelSets(text="text").read(jsonl(tmp_path, values))


def test_the_objective_fits_the_labels(spelling):
    with pytest.raises(UserError, match=r"h.csv:2 has the label 'x', which the training file lacks \(a, b, c\)"):
        LabelSets(text="text").encode([{"text": "abc", "label": ["x"], WHERE: "h.csv:2"}], spelling, 16, CLASSES)
    with pytest.raises(UserError, match="learns the label label_set, .* use examples.kind=label_sets"):
        Task(MultiLabel())
    with pytest.raises(UserError, match="learns the label label, which examples.kind=label_sets does not have"):
        Task(Classification(), LabelSets(train="a", heldout="b"))
