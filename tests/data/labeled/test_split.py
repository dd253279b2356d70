"""A share of one labeled file is held out: by class, by groups of equal texts, and the same each time."""

import json
import random
from collections import Counter

import pytest

from bertjax.data.labeled.label_sets import LabelSets
from bertjax.data.labeled.split import divide, folds
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText, conflicts_of
from bertjax.runtime.errors import UserError

SIZES = {"rare": 2, "some": 31, "most": 167}


def records() -> list[dict]:
    """200 records with three classes; every text of `most` occurs three times, in other cases and with more spaces."""
    texts = [(f"text {name} {number}", name) for name in ("rare", "some") for number in range(SIZES[name])]
    spellings = ("Text {} ", "text  {}", "TEXT {}")
    texts += [(spellings[number % 3].format(number // 3), "most") for number in range(SIZES["most"])]
    random.Random(0).shuffle(texts)
    return [{"text": text, "label": label} for text, label in texts]


def divided(share: float, seed: int = 0, rows: list[dict] | None = None):
    return divide(rows or records(), LabeledText(text="text", heldout=share, limit_seed=seed), has_classes=True)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5, 0.95])
def test_classes_keep_their_proportions(share):
    train, heldout = divided(share)
    assert sorted(map(json.dumps, train + heldout)) == sorted(map(json.dumps, records())), "nothing lost, nothing twice"
    counts = Counter(record["label"] for record in heldout)
    assert counts["rare"] == 1
    assert all(-0.5 <= share * SIZES[name] - counts[name] < 3.5 for name in ("some", "most"))
    assert all(Counter(record["label"] for record in train).values())


@pytest.mark.parametrize("classes, size", [(100, 2), (3, 2), (40, 4)])
def test_many_tiny_classes_leave_the_share_what_it_is(classes, size):
    """Each class of two would give one record, which is half of the file."""
    rows = [{"text": f"text {number}", "label": f"class {number % classes}"} for number in range(classes * size)]
    train, heldout = divided(0.2, rows=rows)
    assert 0.15 * len(rows) <= len(heldout) <= 0.25 * len(rows)
    assert len({record["label"] for record in train}) == classes


def test_a_few_tiny_classes_have_a_held_out_record_each():
    labels = ["most"] * 190 + [f"rare {number % 5}" for number in range(10)]
    rows = [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]
    _, heldout = divided(0.2, rows=rows)
    assert len({record["label"] for record in heldout}) == 6 and 40 <= len(heldout) <= 48


@pytest.mark.parametrize("count", [2, 5])
def test_folds_divide_classes_and_keep_equal_texts_together(count):
    rows = records()
    parts = folds(rows, LabeledText(text="text", folds=count), has_classes=True)
    assert sorted(map(json.dumps, sum(parts, []))) == sorted(map(json.dumps, rows)), "nothing lost, nothing twice"
    texts = [{" ".join(record["text"].casefold().split()) for record in part} for part in parts]
    assert len(set.union(*texts)) == sum(map(len, texts)), "no text is in two folds"
    for name in SIZES:
        sizes = [sum(record["label"] == name for record in part) for part in parts]
        assert max(sizes) - min(sizes) <= (3 if name == "most" else 1), "texts of `most` occur three times"
    assert all([record for record in rows if record in part] == part for part in parts), "in the order of the file"


def test_folds_depend_on_texts_and_seed_alone():
    def texts(rows: list[dict], seed: int) -> list[list[str]]:
        parts = folds(rows, LabeledText(text="text", folds=4, limit_seed=seed), has_classes=True)
        return [sorted(record["text"] for record in part) for part in parts]

    rows = records()
    shuffled = random.Random(1).sample(rows, len(rows))
    assert texts(rows, 0) == texts(shuffled, 0) != texts(rows, 1)


def test_a_text_without_and_with_a_class_is_a_conflict():
    rows = [("one", []), ("One ", ["a"]), ("two", []), ("two", []), ("three", ["b", "a"]), ("three", ["a"])]
    records = [{"text": text, "label": label} for text, label in rows] + [{"text": "two"}]
    found = conflicts_of(records, LabelSets(text="text"))
    assert found == [("one", ["no class", "a"]), ("three", ["a, b", "a"])]


def test_equal_texts_are_on_one_side():
    parts = [{" ".join(record["text"].casefold().split()) for record in part} for part in divided(0.3)]
    assert not parts[0] & parts[1] and min(map(len, parts)) > 10


def test_the_split_depends_on_texts_and_seed_alone():
    rows = records()
    shuffled = random.Random(1).sample(rows, len(rows))

    def texts(part: list[dict]) -> list[str]:
        return sorted(record["text"] for record in part)

    first, again, other = (divided(0.2, *arguments)[1] for arguments in ((0, rows), (0, shuffled), (1, rows)))
    assert texts(first) == texts(again) != texts(other)
    assert [record for record in rows if record in first] == first, "in the order of the file"


def test_a_record_with_several_labels_counts_for_its_rarest():
    rows = [{"text": f"text {number}", "label": ["a", "b"] if number % 10 == 0 else ["a"]} for number in range(50)]
    _, heldout = divide(rows, LabelSets(text="text", heldout=0.2), has_classes=True)
    assert Counter(len(record["label"]) for record in heldout) == {1: 9, 2: 1}


def test_numbers_are_one_class():
    rows = [{"text": f"text {number}", "label": str(number / 7)} for number in range(50)]
    assert len(divide(rows, LabeledText(text="text", heldout=0.2), has_classes=False)[1]) == 10


@pytest.mark.parametrize(
    "make, complaint",
    [
        (lambda: LabeledText(heldout=1.5), "examples.heldout=1.5 must be a file, or a share between 0 and 1"),
        (lambda: Tagged(heldout=0.2), "examples.heldout=0.2 is a share, which examples.kind=tagged does not hold out"),
    ],
)
def test_a_share_that_cannot_be_held_out_is_refused(make, complaint):
    with pytest.raises(UserError, match=complaint):
        make()
