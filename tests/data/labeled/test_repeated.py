"""Texts that are their own pair: from lines and from tables, and held-out pairs with scores."""

import json

import numpy as np
import pytest

from bertjax.data.labeled.repeated import RepeatedText
from bertjax.data.labeled.source import LabeledSource
from bertjax.runtime.errors import UserError

TEXTS = ["abc de", "fgh", "ijklm"]
PAIR = {"sentence1": "abc", "sentence2": "de", "score": 2.5}


def write(folder, lines: str = "abc de\n\nfgh\n  ijklm \n"):
    train, heldout = folder / "train.txt", folder / "dev.jsonl"
    train.write_text(lines)
    heldout.write_text(json.dumps(PAIR) + "\n")
    return str(train), str(heldout)


def test_each_line_is_two_equal_examples(tmp_path, spelling):
    train, heldout = write(tmp_path)
    source = LabeledSource(RepeatedText(train=train, heldout=heldout), spelling)
    assert [record["sentence1"] for record in source.train] == TEXTS
    examples = source.examples("train", 32, ())
    ragged = examples.ragged
    tokens = np.split(ragged.tokens, ragged.offsets[1:-1])
    assert len(examples) == 6 and examples.group == 2 and ragged.labels["side"].tolist() == [0, 1] * 3
    for number, ids in enumerate(spelling.encode(TEXTS)):
        for example in tokens[2 * number : 2 * number + 2]:
            assert example.tolist() == [spelling.cls_id, *ids, spelling.sep_id]
    assert examples.record_of.tolist() == [0, 0, 1, 1, 2, 2]


def test_heldout_pairs_have_two_texts_and_a_score(tmp_path, spelling):
    train, heldout = write(tmp_path)
    examples = LabeledSource(RepeatedText(train=train, heldout=heldout), spelling).examples("heldout", 32, ())
    first, second = np.split(examples.ragged.tokens, examples.ragged.offsets[1:-1])
    assert len(first) == 5 and len(second) == 4
    assert examples.ragged.labels["pair_label"].tolist() == [2.5, 2.5]


def test_the_texts_of_a_labeled_file_are_read_without_its_labels(tmp_path, spelling):
    train, heldout = write(tmp_path)
    table = tmp_path / "train.tsv"
    table.write_text("sentence1\tlabel\n" + "".join(f"{text}\tyes\n" for text in TEXTS))
    lines, rows = (
        LabeledSource(RepeatedText(train=str(path), heldout=heldout), spelling).examples("train", 32, ()).ragged
        for path in (train, table)
    )
    np.testing.assert_array_equal(lines.tokens, rows.tokens)


def test_without_scores_both_files_hold_texts(tmp_path, spelling):
    train, _ = write(tmp_path)
    source = LabeledSource(RepeatedText(train=train, heldout=train, label=""), spelling)
    assert len(source.heldout) == 3 and "pair_label" not in source.examples("heldout", 32, ()).ragged.labels


@pytest.mark.parametrize(
    "lines, choices, message",
    [
        ("\n \n", {}, "train.txt has no lines of text; give a file with at least one"),
        ("abc\n", {"heldout": "train.txt"}, "examples.train and examples.heldout are both "),
        ("abc\n", {"pair": "other"}, "dev.jsonl:1 has no field 'other', it has 'sentence1', 'sentence2', 'score'"),
    ],
)
def test_bad_files_are_refused(tmp_path, spelling, lines, choices, message):
    train, heldout = write(tmp_path, lines)
    choices = {"heldout": heldout} | choices
    if choices["heldout"] == "train.txt":
        choices["heldout"] = train
    with pytest.raises(UserError) as error:
        source = LabeledSource(RepeatedText(train=train, **choices), spelling)
        _ = source.train, source.heldout
    assert message in str(error.value)
