"""Multiple choice: one example per choice, all choices of a record in one row, and errors in files."""

import json

import pytest

from bertjax.data.labeled.base import WHERE
from bertjax.data.labeled.choices import Choices, Race
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.plan import Spec
from bertjax.runtime.errors import UserError
from tests import labeled_files

T = 64
ENDINGS = ("ending0", "ending1", "ending2")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choices")
    return [labeled_files.choices(folder / f"{name}.jsonl", 40, seed) for seed, name in enumerate(("train", "dev"))]


def source(files, store, **fields) -> LabeledSource:
    train, heldout = map(str, files)
    return LabeledSource(Choices(train=train, heldout=heldout, **fields), store.tokenizer)


def decoded(examples, tokenizer, index: int) -> tuple[str, str]:
    ragged = examples.ragged
    span = slice(ragged.offsets[index], ragged.offsets[index + 1])
    tokens, segments = ragged.tokens[span], ragged.segments[span]
    return tuple(tokenizer.decode(tokens[segments == side].tolist()) for side in (0, 1))


def test_a_record_is_an_example_for_each_choice(files, store):
    labeled = source(files, store)
    examples = labeled.examples("train", 3 * T, labeled.classes)
    assert labeled.classes == ("0", "1", "2") and examples.group == 3 and len(examples) == 120
    for number, record in enumerate(labeled.train[:5]):
        for choice, text in enumerate(record["choices"]):
            index = 3 * number + choice
            assert decoded(examples, store.tokenizer, index) == (record["context"], text)
            assert examples.record_of[index] == number
            assert examples.ragged.labels["choice"][index] == record["label"]
    plan = labeled.plan(Spec("train", labeled.format, 2 * T, seed=0, row_examples=7), labeled.classes)
    groups = plan.rows_RN.reshape(len(plan.rows_RN), -1, 3)
    assert groups.shape[1] == 2 and sorted(plan.rows_RN[plan.rows_RN >= 0]) == list(range(120))
    for first, second, third in groups[groups[..., 0] >= 0]:
        assert first % 3 == 0 and (second, third) == (first + 1, first + 2)
    lengths = plan.examples.lengths()
    assert lengths.max() <= 2 * T // 3 and max(lengths[row[row >= 0]].sum() for row in plan.rows_RN) <= 2 * T
    with pytest.raises(UserError, match="a row of 14 tokens leaves 4 for each of 3 choices; raise stages.0.seq_len"):
        labeled.examples("train", 14, labeled.classes)


def test_choices_in_columns_with_a_question_before_each(files, store, tmp_path):
    lines = ["\t".join(["id", "sent1", "sent2", *ENDINGS, "label"])]
    for number, record in enumerate(map(json.loads, files[0].read_text().splitlines())):
        lines.append("\t".join([str(number), record["context"], "cab", *record["choices"], str(record["label"])]))
    path = tmp_path / "swag.tsv"
    path.write_text("\n".join(lines))
    columns = source([path, path], store, context="sent1", question="sent2", choices=ENDINGS)
    examples = columns.examples("train", 3 * T, columns.classes)
    assert columns.format.inputs == ("sent1", "sent2", *ENDINGS)
    assert decoded(examples, store.tokenizer, 4) == (columns.train[1]["sent1"], "cab " + columns.train[1]["ending1"])
    of_list = source(files, store)
    assert columns.unigram_counts("train").tolist() == of_list.unigram_counts("train").tolist()
    labels = [form.examples("train", T, form.classes).ragged.labels["choice"].tolist() for form in (columns, of_list)]
    assert labels[0] == labels[1]


EXAM = {
    "id": "high1.txt",
    "article": "ann met bo . they ran .",
    "questions": ["who ran", "ann met _ ."],
    "options": [["ann", "bo", "both", ""], ["bo", "li", "oslo", "x"]],
    "answers": ["C", "A"],
}


def write(folder, exam, name="high/1.txt"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(exam if isinstance(exam, str) else json.dumps(exam))
    return path


def test_every_question_of_every_level_is_a_record(tmp_path, monkeypatch):
    write(tmp_path, EXAM, "middle/2.txt")
    path = write(tmp_path, EXAM, "high/10.txt")
    write(tmp_path, "notes of mine", "readme.md")
    write(tmp_path, "a copy's metadata", "high/._10.txt")
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


def test_the_choice_follows_the_question_or_fills_its_blank(tmp_path, spelling):
    write(tmp_path, EXAM)
    records = Race().read(str(tmp_path))
    examples = Race(max_tokens=60).encode(records, spelling, 240, ("0", "1", "2", "3"))
    assert examples.group == 4 and len(examples) == 8 and examples.notes == {}
    ragged = examples.ragged
    texts = []
    for tokens, segments in zip(ragged.token_lists(), ragged.segments[ragged.offsets[:-1]]):
        parts = spelling.decode(tokens.tolist(), keep_special=True).split("[SEP]")
        assert parts[0].removeprefix("[CLS]").strip() == EXAM["article"] and segments == 0
        texts.append(parts[1].strip())
    assert texts == [
        *("who ran ann", "who ran bo", "who ran both", "who ran"),
        *("ann met bo .", "ann met li .", "ann met oslo .", "ann met x ."),
    ]
    assert ragged.labels["choice"].tolist() == [2] * 4 + [0] * 4
    write(tmp_path, EXAM | {"article": "ann " * 200})
    records = Race().read(str(tmp_path))
    examples = Race(max_tokens=40).encode(records, spelling, 1000, ("0", "1", "2", "3"))
    assert examples.lengths().max() == 40 and examples.notes == {"cut to 40 tokens": 8}
    text = spelling.decode(examples.take([4]).tokens.tolist(), keep_special=True)
    assert text.endswith("[SEP] ann met bo . [SEP]")
