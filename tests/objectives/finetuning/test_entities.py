"""Entities of tagged words: by hand, and against what seqeval 1.2.2 computed once."""

import json
import random
from pathlib import Path

import pytest

from bertjax.objectives.finetuning.entities import entities, scores

# [precision, recall, f1] of seqeval 1.2.2 with zero_division=0, for the cases of each scheme by seed.
SEQEVAL = json.loads((Path(__file__).parent / "seqeval_scores.json").read_text())
PREFIXES = {"iob": "BI", "iobes": "BIES"}


def case(scheme: str, seed: int) -> tuple[list[list[str]], list[list[str]]]:
    """Return random tags of up to ten sentences, which often contradict each other, and the same with changes."""
    draw = random.Random(seed)
    tags = ["O", "O", *(f"{prefix}-{kind}" for prefix in PREFIXES[scheme] for kind in ("PER", "LOC", "B-side"))]
    gold = [draw.choices(tags, k=draw.randint(1, 12)) for _ in range(draw.randint(1, 10))]
    kept = draw.random()
    return gold, [[tag if draw.random() < kept else draw.choice(tags) for tag in sentence] for sentence in gold]


@pytest.mark.parametrize("scheme", PREFIXES)
def test_scores_are_those_of_seqeval(scheme):
    computed = [list(scores(*case(scheme, seed)).values()) for seed in range(len(SEQEVAL[scheme]))]
    assert len(computed) == 100
    assert [pytest.approx(triple, abs=1e-12) for triple in SEQEVAL[scheme]] == computed


@pytest.mark.parametrize(
    "tags, expected",
    [
        ("B-PER I-PER O I-LOC", {("PER", 0, 1), ("LOC", 3, 3)}),
        ("B-PER B-PER I-LOC", {("PER", 0, 0), ("PER", 1, 1), ("LOC", 2, 2)}),
        ("B-PER I-PER E-PER S-PER E-PER", {("PER", 0, 2), ("PER", 3, 3), ("PER", 4, 4)}),
        ("O O", set()),
    ],
)
def test_entities_of_a_sentence(tags, expected):
    assert entities(tags.split()) == expected


def test_scores_without_entities_are_zero():
    assert scores([["O"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_sentences_must_correspond():
    with pytest.raises(ValueError):
        scores([["O"]], [])
