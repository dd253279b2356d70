"""`examples.limit`: a random part of the training file, the same for all seeds, with its classes in proportion."""

from collections import Counter

import pytest

from bertjax.data.labeled.choices import Choices
from bertjax.data.labeled.subset import limited
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText

# Sorted by class, as many files are: the first 100 records would have one class only.
COUNTS = {"often": 600, "sometimes": 300, "seldom": 99, "once": 1}
RECORDS = [{"sentence": str(number), "label": name} for name, count in COUNTS.items() for number in range(count)]


def take(limit: int, seed: int = 0) -> list[dict]:
    return limited(RECORDS, LabeledText(limit=limit, limit_seed=seed))


@pytest.mark.parametrize("limit", [10, 100, 500])
def test_classes_keep_their_shares_and_none_is_lost(limit):
    taken = take(limit)
    assert len(taken) == limit == len({id(record) for record in taken})
    counts = Counter(record["label"] for record in taken)
    assert counts.keys() == COUNTS.keys()
    for name, count in COUNTS.items():
        assert abs(counts[name] - limit * count / len(RECORDS)) <= 2, name


def test_it_is_random_and_the_same_each_time():
    assert take(100) == take(100) != take(100, seed=1)
    often = [int(record["sentence"]) for record in take(500) if record["label"] == "often"]
    assert often == sorted(often), "the order of the file stays"
    assert 250 < sum(often) / len(often) < 350, "not the first ones of a class"
    assert take(0) == take(1000) == take(2000) == RECORDS


def test_right_choices_keep_their_shares():
    """The number of the right choice is the class of a record."""
    numbers = [number for number, count in enumerate(COUNTS.values()) for _ in range(count)]
    records = [{"context": "a", "choices": list("abcd"), "label": str(number)} for number in numbers]
    counts = Counter(record["label"] for record in limited(records, Choices(limit=100)))
    assert all(abs(counts[str(number)] - count / 10) <= 1 for number, count in enumerate(COUNTS.values()))


def test_a_limit_below_the_number_of_classes():
    assert len(take(2)) == 2


def test_every_tag_is_kept():
    records = [{"words": ["a", "b"], "tags": ["O", "O"]} for _ in range(200)]
    records[150] = {"words": ["a", "b"], "tags": ["O", "B-PER"]}
    taken = limited(records, Tagged(limit=5))
    assert len(taken) == 5 and records[150] in taken
