"""RACE in its original files: articles with questions of four choices, and errors in files."""

import json

from bertjax.data.labeled.base import WHERE
from bertjax.data.labeled.choices import Race

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


def test_the_article_is_cut_before_the_question(tmp_path, spelling):
    write(tmp_path, EXAM | {"article": "ann " * 200})
    records = Race().read(str(tmp_path))
    examples = Race(max_tokens=40).encode(records, spelling, 1000, ("0", "1", "2", "3"))
    assert examples.lengths().max() == 40 and examples.notes == {"cut to 40 tokens": 8}
    text = spelling.decode(examples.take([4]).tokens.tolist(), keep_special=True)
    assert text.endswith("[SEP] ann met bo . [SEP]")
