"""Tags of words: the loss in packed rows, entities, and what is predicted."""

import random

import numpy as np
import pytest

from bertjax.data.labeled.tagged import Tagged
from bertjax.objectives.finetuning.tagging import Tagging
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


def test_only_first_pieces_weigh_and_each_word_once(format, spelling):
    labeled = labeled_batches.load(format, Tagging(CLASSES), spelling, SEQ_LEN, 4)
    assert max(np.bincount(labeled.examples.record_of)) > 1
    words = sum(len(record["words"]) for record in labeled.examples.records)
    assert Tagging(CLASSES).weights(labeled.batch)["tagging"] == words
    first = labeled.batch["tags_BT"] >= 0
    pieces = [spelling.piece(token) for token in labeled.batch["tokens_BT"][first]]
    assert not any(piece.startswith(("##", "[")) for piece in pieces)


def test_a_teacher_also_weighs_words_without_tags(format, spelling):
    objective = Tagging(CLASSES)
    labeled = labeled_batches.load(format, objective, spelling, SEQ_LEN, 4)
    assert np.array_equal(objective.soft_weights(labeled.batch), labeled.batch["tags_BT"] >= 0)
    untagged = [{"words": record["words"]} for record in labeled.examples.records]
    ragged = format.encode(untagged, spelling, SEQ_LEN, CLASSES).ragged
    batch = {"tags_BT": ragged.token_labels["tag"]}
    assert objective.weights(batch)["tagging"] == 0
    assert np.array_equal(objective.soft_weights(batch), labeled.examples.ragged.token_labels["tag"] >= 0)


def test_gold_tags_are_correct_over_all_windows(format, spelling):
    examples = labeled_batches.load(format, Tagging(CLASSES), spelling, SEQ_LEN, 4).examples
    gold = np.maximum(examples.ragged.token_labels["tag"], 0)
    scores, predictions = answer(Tagging(CLASSES), examples, gold)
    assert scores == {"precision": 1.0, "recall": 1.0, "f1": 1.0}
    assert [predicted["prediction"] for predicted in predictions] == [record["tags"] for record in examples.records]
    assert [predicted["words"] for predicted in predictions] == [record["words"] for record in examples.records]
    assert all(set(predicted) == {"words", "tags", "prediction"} for predicted in predictions)


def test_a_record_with_a_missing_window_is_not_scored(format, spelling):
    examples = labeled_batches.load(format, Tagging(CLASSES), spelling, SEQ_LEN, 4).examples
    counts = np.bincount(examples.record_of)
    kept = np.flatnonzero(np.diff(examples.record_of, prepend=-1) > 0)  # the first window of each
    ragged, records = examples.take(kept), [examples.records[number] for number in examples.record_of[kept]]
    predicted = Tagging(CLASSES).predictions({"guesses": ragged.token_labels["tag"]}, ragged, records)
    assert len(predicted) == np.sum(counts == 1) < len(counts)


@pytest.mark.parametrize(
    "gold, guesses, expected",
    [  # entities, as conlleval counts them: of three found, two are right; of four there, two are found
        (
            ["B-PER", "I-PER", "O", "B-LOC", "B-PER", "B-LOC"],
            ["B-PER", "I-PER", "O", "B-LOC", "O", "B-PER"],
            (2 / 3, 2 / 4, 4 / 7),
        ),
        (["I-PER", "I-PER", "B-PER", "O"], ["I-PER", "I-PER", "I-PER", "O"], (0.0, 0.0, 0.0)),  # IOB1: two persons
        (["O", "O"], ["O", "O"], (0.0, 0.0, 0.0)),
    ],
)
def test_scores_as_literals(spelling, gold, guesses, expected):
    record = {"words": ["a"] * len(gold), "tags": gold}
    examples = Tagged().encode([record], spelling, 32, CLASSES)
    of_tokens = np.array([0, *(CLASSES.index(tag) for tag in guesses), 0])
    scores, _ = answer(Tagging(CLASSES), examples, of_tokens)
    assert tuple(scores.values()) == pytest.approx(expected)


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
