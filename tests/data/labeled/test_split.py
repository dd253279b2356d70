"""Parts of one labeled file: held out, folds and `examples.limit`, by class and the same each time."""

import json
import random
from collections import Counter

import pytest

from bertjax.data.labeled import labels
from bertjax.data.labeled.label_sets import LabelSets
from bertjax.data.labeled.split import divide, folds, limited
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText, conflicts_of

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


def test_what_counts_as_one_class():
    labels = ["most"] * 190 + [f"rare {number % 5}" for number in range(10)]
    rows = [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]
    _, heldout = divided(0.2, rows=rows)
    assert len({record["label"] for record in heldout}) == 6 and 40 <= len(heldout) <= 48
    rows = [{"text": f"text {number}", "label": ["a", "b"] if number % 10 == 0 else ["a"]} for number in range(50)]
    _, heldout = divide(rows, LabelSets(text="text", heldout=0.2), has_classes=True)
    assert Counter(len(record["label"]) for record in heldout) == {1: 9, 2: 1}


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


def test_a_text_without_and_with_a_class_is_a_conflict():
    rows = [("one", []), ("One ", ["a"]), ("two", []), ("two", []), ("three", ["b", "a"]), ("three", ["a"])]
    records = [{"text": text, "label": label} for text, label in rows] + [{"text": "two"}]
    found = conflicts_of(records, LabelSets(text="text"))
    assert found == [("one", ["no class", "a"]), ("three", ["a, b", "a"])]


def test_the_split_depends_on_texts_and_seed_alone():
    rows = records()
    shuffled = random.Random(1).sample(rows, len(rows))

    def texts(part: list[dict]) -> list[str]:
        return sorted(record["text"] for record in part)

    first, again, other = (divided(0.2, *arguments)[1] for arguments in ((0, rows), (0, shuffled), (1, rows)))
    assert texts(first) == texts(again) != texts(other)
    assert [record for record in rows if record in first] == first, "in the order of the file"


# Sorted by class, as many files are: the first 100 records would have one class only.
COUNTS = {"often": 600, "sometimes": 300, "seldom": 99, "once": 1}
SORTED = [{"sentence": str(number), "label": name} for name, count in COUNTS.items() for number in range(count)]


def take(limit: int, seed: int = 0) -> list[dict]:
    return limited(SORTED, LabeledText(limit=limit, limit_seed=seed))


@pytest.mark.parametrize("limit", [10, 100, 500])
def test_classes_keep_their_shares_and_none_is_lost(limit):
    taken = take(limit)
    assert len(taken) == limit == len({id(record) for record in taken})
    counts = Counter(record["label"] for record in taken)
    assert counts.keys() == COUNTS.keys()
    for name, count in COUNTS.items():
        assert abs(counts[name] - limit * count / len(SORTED)) <= 2, name


def test_a_limit_is_random_and_the_same_each_time():
    assert take(100) == take(100) != take(100, seed=1)
    often = [int(record["sentence"]) for record in take(500) if record["label"] == "often"]
    assert often == sorted(often), "the order of the file stays"
    assert 250 < sum(often) / len(often) < 350, "not the first ones of a class"
    assert take(0) == take(1000) == take(2000) == SORTED
    assert len(take(2)) == 2
    records = [{"words": ["a", "b"], "tags": ["O", "O"]} for _ in range(200)]
    records[150] = {"words": ["a", "b"], "tags": ["O", "B-PER"]}
    taken = limited(records, Tagged(limit=5))
    assert len(taken) == 5 and records[150] in taken


def test_names_and_their_order():
    for label, name in (
        (1.0, "1"),
        ("1.00", "1"),
        (2.5, "2.5"),
        ("2.50", "2.50"),
        ("007.0", "007.0"),
        (True, "True"),
        ("\ufeffpos\u200b", "pos"),
        ("cafe\u0301", "caf\u00e9"),
        ("a  b", "a  b"),
    ):
        assert labels.class_of(label) == name
    for names in (("-1", "0", "9", "10"), ("1", "1.5", "10"), ("10", "9", "x"), ("B", "a", "b"), ()):
        assert labels.ordered(reversed(names)) == names


def test_missing_labels_and_counted_names():
    """Beside names that count from 0, -1 is no label."""
    assert all(map(labels.is_missing, ("-", " ", None, float("nan")))) and not labels.is_missing(0)
    assert labels.are_counted(["0", "1", "2"]) and labels.are_counted(["LABEL_1", "LABEL_0"])
    assert not any(map(labels.are_counted, (["0"], ["1", "2"], ["0", "1", "x"])))


@pytest.mark.parametrize(
    "names, classes, expected",
    [
        ("a b", "b a", {"a": "a", "b": "b"}),
        ("a b", "a c", {"a": "a"}),
        ("entailment neutral", "NEUTRAL Entailment", {"entailment": "Entailment", "neutral": "NEUTRAL"}),
        ("0 1 2", "LABEL_2 LABEL_0 LABEL_1", {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}),
        ("LABEL_0 LABEL_1", "1 0", {"LABEL_0": "0", "LABEL_1": "1"}),
        ("XLABEL_2", "X2", {}),
        ("pos Pos", "POS neg", {}),
        ("pos neg", "Pos POS neg", {"neg": "neg"}),
        ("pos Pos", "Pos pos", {"pos": "pos", "Pos": "Pos"}),
    ],
)
def test_names_that_mean_one_class(names, classes, expected):
    assert labels.matched(names.split(), classes.split()) == expected
