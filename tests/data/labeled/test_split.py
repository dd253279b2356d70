"""A share of one labeled file is held out: by class, by groups of equal texts, and the same each time."""

import json
import random
from collections import Counter

import pytest

from bertjax.data.labeled.label_sets import LabelSets
from bertjax.data.labeled.split import divide
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText
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
