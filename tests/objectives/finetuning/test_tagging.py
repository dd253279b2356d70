"""Tags of words: the loss in packed rows, entities, and what is predicted."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from bertjax.data.labeled.labels import canonical_of, entities
from bertjax.data.labeled.tagged import Tagged
from bertjax.objectives.finetuning.answers import entity_scores as scores
from bertjax.objectives.finetuning.labels import Tagging
from tests.objectives import labeled_batches

CLASSES = ("B-LOC", "B-PER", "I-PER", "O")
SEQ_LEN = 24


@pytest.fixture(scope="module")
def format(tmp_path_factory):
    """Forty sentences of 1, 2, 3 or 12 words, some longer than a row."""
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("tagged") / "train.txt"
    sentences = [
        "".join(f"{''.join(draw.choices('abc', k=draw.randint(1, 5)))} {draw.choice(CLASSES)}\n" for _ in range(length))
        for length in (draw.choice((1, 1, 2, 3, 12)) for _ in range(40))
    ]
    path.write_text("\n".join(sentences))
    return Tagged(train=str(path), heldout=str(path), stride=8)


def answer(objective, examples, guesses_BT):
    records = [examples.records[number] for number in examples.record_of]
    outputs = {"guesses": guesses_BT}
    return objective.score(outputs, examples.ragged, records), objective.predictions(outputs, examples.ragged, records)


def test_packing_changes_nothing(format, spelling):
    labeled_batches.assert_packing_changes_nothing(format, Tagging(CLASSES), spelling, SEQ_LEN)


def test_gold_tags_are_correct_over_all_windows(format, spelling):
    examples = labeled_batches.load(format, Tagging(CLASSES), spelling, SEQ_LEN, 4).examples
    gold = np.maximum(examples.ragged.token_labels["tag"], 0)
    scores, predictions = answer(Tagging(CLASSES), examples, gold)
    assert scores == {"precision": 1.0, "recall": 1.0, "f1": 1.0}
    assert [predicted["prediction"] for predicted in predictions] == [record["tags"] for record in examples.records]
    assert [predicted["words"] for predicted in predictions] == [record["words"] for record in examples.records]
    assert all(set(predicted) == {"words", "tags", "prediction"} for predicted in predictions)


def test_tags_that_are_not_entities_have_an_accuracy_only(spelling):
    objective = Tagging(("NN", "VB"))
    examples = Tagged().encode([{"words": ["a", "b"], "tags": ["NN", "VB"]}], spelling, 8, objective.classes)
    assert objective.best_metric == "token_accuracy" and Tagging(CLASSES).best_metric == "f1"
    scores, predictions = answer(objective, examples, np.array([0, 0, 1, 0]))
    assert scores == {} and predictions[0]["prediction"] == ["NN", "VB"]


def test_the_baseline_predicts_the_most_frequent_tag(format, spelling):
    labeled = labeled_batches.load(format, Tagging(CLASSES), spelling, SEQ_LEN, 4)
    counts = format.class_counts(labeled.examples.records)
    right, total = Tagging(CLASSES).baselines(labeled.batch, np.array([counts[name] for name in CLASSES]))[
        "majority_accuracy"
    ]
    assert (right, total) == (max(counts.values()), sum(counts.values()))


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


# Each scheme by how it spells the places B, I, E and S, for an entity of several words and for one of a single word.
SCHEMES = {"IOBES": "BIES", "BILOU": "BILU", "BMES": "BMES", "BMEWO": "BMEW", "IOB2": "BIIB"}
SPELLINGS = {"B-PER": "{place}-{kind}", "B_PER": "{place}_{kind}", "PER-B": "{kind}-{place}", "PER_B": "{kind}_{place}"}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("lower", [False, True])
def test_every_scheme_gives_the_scores_of_iobes(scheme, spelling, lower):
    """seqeval's scores of IOBES, of tags that do not contradict each other, are those of the same entities."""
    draw = random.Random(0)

    def sentence() -> list[str]:
        tags = []
        for _ in range(draw.randint(1, 4)):
            kind, length = draw.choice(["PER", "LOC", "side-B"]), draw.randint(0, 4)
            inside = ["B", *"I" * (length - 2), "E"] if length > 1 else ["S"] * length
            tags += [*(f"{place}-{kind}" for place in inside), *["O"] * draw.randint(0, 2)]
        return tags or ["O"]

    def spelled(tag: str) -> str:
        if tag != "O":
            place = SCHEMES[scheme]["BIES".index(tag[0])]
            tag = SPELLINGS[spelling].format(
                place=place, kind=tag[2:].replace("-", spelling[1 if spelling[0] == "B" else 3])
            )
        return tag.lower() if lower else tag

    gold = [sentence() for _ in range(30)]
    predicted = [tags if draw.random() < 0.5 else ["O"] * len(tags) for tags in gold]
    spelled_gold, spelled_predicted = ([list(map(spelled, tags)) for tags in side] for side in (gold, predicted))
    assert scores(spelled_gold, spelled_predicted) == scores(gold, predicted)


@pytest.mark.parametrize(
    "tags, expected",
    [
        ("U-PER O B-LOC L-LOC", {("PER", 0, 0), ("LOC", 2, 3)}),
        ("B_PER M_PER E_PER S_PER", {("PER", 0, 2), ("PER", 3, 3)}),
        ("PER_B PER_I O LOC-B", {("PER", 0, 1), ("LOC", 3, 3)}),
        ("PER-B PER-I o LOC-B", {("PER", 0, 1), ("LOC", 3, 3)}),
        ("B M E S O", {("", 0, 2), ("", 3, 3)}),
        ("I-PER I-PER O I-LOC", {("PER", 0, 1), ("LOC", 3, 3)}),
        ("O O", None),
        ("NOUN VERB O", None),
        ("B-PER PER", None),
        ("S I", {("", 0, 0), ("", 1, 1)}),
        ("PER LOC O", None),
        ("U L M O", None),
    ],
)
def test_schemes(tags, expected):
    canonical = canonical_of(tags.split())
    assert (canonical and entities(list(map(canonical, tags.split())))) == expected
