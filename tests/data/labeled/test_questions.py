"""Questions and answers: SQuAD's JSON, windows, the places of answers, and errors in files."""

import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.labeled.base import WHERE
from bertjax.data.labeled.questions import ANSWER, NO_ANSWER, Questions
from bertjax.runtime.errors import UserError

BOTH = (ANSWER, NO_ANSWER)


def question(context, answer="", start=None, wording="who", **fields):
    start = context.index(answer) if start is None else start
    answers = [{"text": answer, "answer_start": start}] if answer else []
    return {"question": wording, "context": context, "answers": answers} | fields


def squad(*records):
    """A file with these questions, one paragraph each."""
    paragraphs = [{"context": record.pop("context"), "qas": [{"id": "q", **record}]} for record in records]
    return {"version": "2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}


def write(folder, content):
    path = folder / "train.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


def answer_of(examples, window):
    """The characters from the first to the last labeled token."""
    ragged, record = examples.ragged, examples.records[examples.record_of[window]]
    first, last = (ragged.offsets[window] + ragged.labels[name][window] for name in ("start", "end"))
    return record["context"][ragged.token_labels["begin"][first] : ragged.token_labels["stop"][last]]


def test_both_versions_of_squad_are_read(tmp_path):
    impossible = question("of bo") | {"is_impossible": True, "plausible_answers": [{"text": "bo", "answer_start": 3}]}
    path = write(tmp_path, squad(question("ann ran.", "ann"), impossible))
    assert Questions().read(path) == [
        {
            "id": "q",
            "question": "who",
            "context": "ann ran.",
            "answers": [{"text": "ann", "answer_start": 0}],
            WHERE: f"{path}:data[0].paragraphs[0].qas[0]",
        },
        {
            "id": "q",
            "question": "who",
            "context": "of bo",
            "answers": [],
            WHERE: f"{path}:data[0].paragraphs[1].qas[0]",
        },
    ]
    assert Questions().class_counts(Questions().read(path)) == {ANSWER: 1, NO_ANSWER: 1}


def test_the_file_of_a_benchmark_is_read_to_predict(tmp_path):
    """Nested or flat, with answers or without; JSON lines are read as any records are."""
    entry = {"id": 7, "question": "who", "context": "ann ran."}
    nested = [{"paragraphs": [{"context": "ann ran.", "qas": [{"id": 7, "question": "who"}]}]}]
    for data in (nested, [entry], [entry | {"answers": {"text": ["x"], "answer_start": [9]}}]):
        [record] = Questions().read_unlabeled(write(tmp_path, json.dumps({"data": data})), ())
        assert {name: record[name] for name in record if name != WHERE} == entry | {"id": "7"}
    for content in (json.dumps(entry), json.dumps([entry]), "{"):
        assert Questions().read_unlabeled(write(tmp_path, content), ()) is None
    with pytest.raises(UserError, match=r"data\[1\] has no text 'context'"):
        Questions().read_unlabeled(write(tmp_path, json.dumps({"data": [entry, {"question": "who"}]})), ())


def test_an_example_is_the_question_and_its_context(spelling):
    examples = Questions(max_question=4).encode([question("of bo. ran", "bo")], spelling, 32, (ANSWER,))
    ragged = examples.ragged
    pieces = [spelling.piece(token) for token in ragged.tokens]
    assert pieces == "[CLS] w ##h ##o [SEP] o ##f b ##o . r ##a ##n [SEP]".split()
    assert ragged.segments.tolist() == [0] * 5 + [1] * 9
    assert (ragged.labels["start"].tolist(), ragged.labels["end"].tolist()) == ([7], [8])
    assert ragged.token_labels["begin"].tolist() == [-1] * 5 + [0, 1, 3, 4, 5, 7, 8, 9, -1]
    assert ragged.token_labels["stop"].tolist() == [-1] * 5 + [1, 2, 4, 5, 6, 8, 9, 10, -1]
    assert ragged.token_labels["most_context"].tolist() == [False] * 5 + [True] * 8 + [False]


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


def test_questions_without_an_answer_and_long_ones(spelling):
    examples = Questions(max_question=4).encode([question("of bo")], spelling, 32, BOTH)
    assert examples.ragged.labels["start"].tolist() == examples.ragged.labels["end"].tolist() == [0]
    with pytest.raises(UserError, match="has no answer, but all questions of the training file have one; leave it out"):
        Questions(max_question=4).encode([question("of bo")], spelling, 32, (ANSWER,))
    records = [question("a" * 30, "a"), question("a" * 30, "a", wording="a" * 9), question("a", "a")]
    examples = Questions(max_question=4, stride=8).encode(records, spelling, 24, (ANSWER,))
    assert examples.notes == {"cut to 4 tokens of question": 1, "read in windows of 24 tokens": 2}
    assert examples.record_of.tolist() == [0, 0, 0, 1, 1, 1, 2]
