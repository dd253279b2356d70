"""Labeled files as what a run reads: classes, labels, rows, and a fingerprint of what they say."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from bertjax.data.labeled.source import LabeledSource
from bertjax.data.labeled.texts import LabeledText
from bertjax.data.plan import Spec
from bertjax.errors import UserError
from tests import labeled_files

T = 32


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return labeled_files.write(tmp_path_factory.mktemp("labeled"))


def source(files, store, **choices) -> LabeledSource:
    train, heldout = map(str, files)
    return LabeledSource(LabeledText(train=train, heldout=heldout, **choices), store.tokenizer)


def test_labels_are_numbers_of_the_classes_of_the_training_file(files, store):
    opened = source(files, store)
    assert opened.classes == ("no", "yes")
    labels = opened.examples("heldout", T, opened.classes).ragged.labels["label"]
    assert [opened.classes[label] for label in labels] == [record["label"] for record in opened.heldout]
    counts = opened.unigram_counts("train")
    assert counts.tolist() == [sum(r["label"] == name for r in opened.train) for name in opened.classes]


def test_numbers_stay_numbers(files, store):
    opened = source(files, store, label="score", pair="other")
    ragged = opened.examples("train", T, ()).ragged
    np.testing.assert_allclose(ragged.labels["label"], [record["score"] for record in opened.train])
    assert ragged.segments.max() == 1


def test_every_example_is_in_one_row_and_rows_are_full(files, store):
    opened = source(files, store)
    plan = opened.plan(Spec("train", opened.format, T, seed=0, row_examples=4), opened.classes)
    placed = plan.rows_RN[plan.rows_RN >= 0]
    assert sorted(placed) == list(range(len(opened.train))) and plan.counts.slots <= 4
    lengths = plan.examples.lengths()
    assert max(lengths[row[row >= 0]].sum() for row in plan.rows_RN) <= T
    assert plan.counts.real_share(T) > 0.85


def test_groups_share_a_row(files, store):
    opened = source(files, store)
    long = 2 * T
    examples = dataclasses.replace(opened.examples("train", long, opened.classes), group=2)
    opened._encoded["train", long, opened.classes] = examples
    plan = opened.plan(Spec("train", opened.format, long, seed=0, row_examples=4), opened.classes)
    pairs = plan.rows_RN.reshape(len(plan.rows_RN), -1, 2)
    assert (pairs[..., 1] - pairs[..., 0])[pairs[..., 0] >= 0].tolist() == [1] * (len(opened.train) // 2)
    assert (pairs[..., 0] % 2 == 0)[pairs[..., 0] >= 0].all()
    opened._encoded["train", T, opened.classes] = dataclasses.replace(examples, group=len(examples))
    with pytest.raises(UserError, match="160 texts that belong together have .* raise stages.0.seq_len"):
        opened.plan(Spec("train", opened.format, T, seed=0), opened.classes)


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


@pytest.mark.parametrize(
    "record, choices, complaint",
    [
        ({"sentence": "a", "label": "maybe"}, {}, "dev.jsonl:1 has the label 'maybe', which the training file lacks"),
        (
            {"sentence": "a", "label": "high"},
            {"numeric": True},
            "dev.jsonl:1 has the label 'high', which is not a number",
        ),
        ({"sentence": " ", "label": "yes"}, {}, "dev.jsonl:1 has no text in 'sentence'"),
        ({"sentence": 3, "label": "yes"}, {}, "dev.jsonl:1 has no text in 'sentence'"),
    ],
)
def test_bad_records_are_refused(files, store, tmp_path, record, choices, complaint):
    broken = tmp_path / "dev.jsonl"
    broken.write_text(json.dumps(record) + "\n")
    opened = source((files[0], broken), store)
    with pytest.raises(UserError, match=complaint):
        opened.examples("heldout", T, () if choices else opened.classes)
