"""Labeled files as a run reads them: classes, labels, rows, and fingerprints of their content."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from bertjax.data import tokenizer
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.labeled.texts import LabeledText
from bertjax.data.packing import pack
from bertjax.data.plan import Spec
from bertjax.runtime.errors import UserError
from tests import labeled_files

T = 32


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return labeled_files.write(tmp_path_factory.mktemp("labeled"))


def source(files, store, **choices) -> LabeledSource:
    train, heldout = map(str, files)
    return LabeledSource(LabeledText(train=train, heldout=heldout, **choices), store.tokenizer)


def test_whole_numbers_are_one_class_with_and_without_a_point(store, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"sentence": "abc", "label": label}) + "\n" for label in (1, 0, 1.0, 2.5)))
    labeled = source((path, path), store)
    assert labeled.classes == ("0", "1", "2.5")
    assert labeled.examples("train", T, labeled.classes).ragged.labels["label"].tolist() == [1, 0, 1, 2]


def test_every_example_is_in_one_row_and_rows_are_full(files, store):
    labeled = source(files, store)
    plan = labeled.plan(Spec("train", labeled.format, T, seed=0, row_examples=4), labeled.classes)
    placed = plan.rows_RN[plan.rows_RN >= 0]
    assert sorted(placed) == list(range(len(labeled.train))) and plan.counts.slots <= 4
    lengths = plan.examples.lengths()
    assert max(lengths[row[row >= 0]].sum() for row in plan.rows_RN) <= T
    tightest = pack(np.bincount(lengths, minlength=T + 1), 4)
    assert plan.counts.rows <= 1.05 * sum(pattern.rows for pattern in tightest)
    examples = dataclasses.replace(labeled.examples("train", T, labeled.classes), group=160)
    labeled._encoded["train", T, labeled.classes] = examples
    with pytest.raises(UserError, match="160 texts that belong together have .* raise stages.0.seq_len"):
        labeled.plan(Spec("train", labeled.format, T, seed=0), labeled.classes)
    plans = [labeled.plan(Spec("heldout", labeled.format, T, seed), labeled.classes) for seed in (0, 1)]
    rows = np.arange(plans[0].counts.rows)
    np.testing.assert_array_equal(plans[0].rows(rows, rows), plans[1].rows(rows, 0 * rows))


def row_mates(plan, seed_epochs: np.ndarray) -> set[tuple[int, int]]:
    """The pairs of examples that share a row in an epoch."""
    rows_RN = plan.rows(np.arange(plan.counts.rows), seed_epochs)
    return {(a, b) for row in rows_RN.tolist() for a in row for b in row if 0 <= a < b}


def test_runs_and_epochs_differ_in_the_examples_that_share_a_row(files, store):
    labeled = source(files, store)
    spec = Spec("train", labeled.format, T, seed=0, row_examples=4)
    plans = [labeled.plan(dataclasses.replace(spec, seed=seed), labeled.classes) for seed in (0, 1)]
    rows = plans[0].counts.rows
    epochs = [np.full(rows, epoch) for epoch in (0, 1)]
    first = row_mates(plans[0], epochs[0])
    for other in (row_mates(plans[0], epochs[1]), row_mates(plans[1], epochs[0])):
        assert len(other & first) < 0.2 * len(first)
    assert plans[0].fingerprint == plans[1].fingerprint, "the seed is part of the run's identity"
    lengths = plans[0].examples.lengths()
    for plan, epoch in ((plans[0], 0), (plans[0], 1), (plans[1], 7)):
        placed_RN = plan.rows(np.arange(rows), np.full(rows, epoch))
        assert sorted(placed_RN[placed_RN >= 0]) == list(range(len(labeled.train)))
        np.testing.assert_array_equal(
            np.where(placed_RN < 0, 0, lengths[placed_RN]), np.where(plan.rows_RN < 0, 0, lengths[plan.rows_RN])
        )


def test_groups_trade_places_as_a_whole(files, store):
    labeled = source(files, store)
    examples = dataclasses.replace(labeled.examples("train", 2 * T, labeled.classes), group=2)
    labeled._encoded["train", 2 * T, labeled.classes] = examples
    plan = labeled.plan(Spec("train", labeled.format, 2 * T, seed=0), labeled.classes)
    placed_RN = plan.rows(np.arange(plan.counts.rows), np.full(plan.counts.rows, 3))
    pairs = placed_RN.reshape(len(placed_RN), -1, 2)
    pairs = pairs[pairs[..., 0] >= 0]
    assert (pairs[:, 0] % 2 == 0).all() and (pairs[:, 1] == pairs[:, 0] + 1).all() and len(pairs) == 80
    assert (placed_RN != plan.rows_RN).any()


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


def test_held_out_texts_of_the_training_file_are_counted(files, store, tmp_path):
    assert source(files, store).repeated() < 20
    [text, *_] = map(json.loads, files[0].read_text().splitlines())
    heldout = tmp_path / "dev.jsonl"
    records = [text, text | {"label": "another"}, text | {"sentence": "a text of its own"}]
    heldout.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert source((files[0], heldout), store).repeated() == 2, "whatever their labels are"


def test_a_plan_keeps_the_fingerprint_of_older_runs(files, tmp_path):
    """So that runs that were started before a change of the code still resume."""
    words = tokenizer.from_model(labeled_files.vocabulary(tmp_path / "vocab.txt"), lowercase=True)
    train, heldout = map(str, files)
    labeled = LabeledSource(LabeledText(train=train, heldout=heldout), words)
    plan = labeled.plan(Spec("train", labeled.format, 16, seed=0, row_examples=3), labeled.classes)
    assert plan.fingerprint.startswith("53429d89b2")


def test_many_bad_records_are_counted_but_not_listed(tmp_path, store, capsys):
    path = tmp_path / "train.jsonl"
    path.write_text(
        '{"sentence": "a", "label": 1}\n' + '{"sentence": ""\n' * 400 + '{"sentence": " ", "label": 1}\n' * 9
    )
    assert len(source((path, path), store, on_bad_record="skip").train) == 1
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("skipped: ") for line in lines) == 5
    assert lines[-2:] == [
        "further bad records are counted but not listed",
        f"{path}: 409 of 410 records skipped (examples.on_bad_record=skip)",
    ]
    path.write_text('{"sentence": ""}\n')
    with pytest.raises(UserError, match="train.jsonl has no rows"):
        _ = source((path, path), store, on_bad_record="skip").train
