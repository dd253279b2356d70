"""Labeled files as people have them: each gives its right classes and words, or is refused in one line.

Every case is a start of a run up to its first compilation, as in `test_bad_files`.
"""

import json
import re

import pytest

from bertjax.data.labeled.split import text_key
from bertjax.runtime.errors import UserError
from bertjax.training.results import labeled_block
from bertjax.training.results.report import labeled_lines


def lines(*records: dict) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def labeled(*labels: object) -> str:
    return lines(*({"text": f"abc {number}", "label": label} for number, label in enumerate(labels)))


EXAMPLES = {
    "classification": {"kind": "labeled_text", "text": "text"},
    "regression": {"kind": "labeled_text", "text": "text"},
    "embedding_regression": {"kind": "siamese_pairs", "text": "text", "pair": "text"},
    "multi_label": {"kind": "label_sets", "text": "text"},
    "tagging": {"kind": "tagged"},
}


@pytest.fixture
def feeds(open_files):
    """feeds(suffix, training, heldout, objective, its settings, **settings of the examples) -> the feeds of a run."""

    def open_run(suffix: str, training: str, heldout: str = "", objective: str = "classification", own=(), **settings):
        examples = EXAMPLES[objective] | settings
        return open_files({"kind": objective} | dict(own), suffix, training, heldout or training, **examples)

    return open_run


def printed(feeds) -> list[str]:
    return labeled_lines(feeds.store, feeds.config.task.objective, feeds.store.repeated())


def test_equal_texts_with_different_labels_and_classes_with_few_records(feeds):
    assert text_key(["A dog", "a cat"]) == text_key(["a  CAT", "a dog"]), "a pair and its mirror are on one side"
    rows = [("Fast  Car", "good"), ("slow", "bad"), ("fast car", "bad"), ("slow", "bad"), ("FAST CAR", "good")]
    rows += [(f"abc {number}", "good") for number in range(5)]
    train = lines(*({"text": text, "label": label} for text, label in rows))
    opened = feeds(".jsonl", train, lines({"text": "cab", "label": "good"}, {"text": "Slow", "label": "good"}))
    facts = labeled_block.facts_of(opened)
    assert facts["toy"]["conflicts"] == [("Fast  Car", ["good", "bad"]), ("slow", ["bad", "good"])]
    assert facts["toy"]["repeated"] == 1
    warnings = [line for line in labeled_block.lines_of(opened, facts, {}) if line.startswith("warning: ")]
    assert warnings[1:] == [
        "warning: no held-out record shows how well these classes are found: 'bad'",
        "warning: classes with fewer than 5 training examples are hardly learned: 'bad' 3",
        "warning: equal texts with different labels: 2, such as 'Fast  Car' ('good' and 'bad'); correct the labels "
        "that are wrong",
    ]
    numbers = feeds(".jsonl", labeled(1, 2, 3), objective="regression")
    assert labeled_block.facts_of(numbers)["toy"]["conflicts"] == []
    opened = feeds(".jsonl", labeled(*"ab" * 5))
    warnings = [
        line for line in labeled_block.lines_of(opened, labeled_block.facts_of(opened), {}) if "warning" in line
    ]
    assert len(warnings) == 1 and "10 held-out records have texts that the training file has too" in warnings[0]


# (objective, its setting, labels, part of what is printed; empty if it is nothing)
MISTAKES = [
    ("regression", {}, [3, 3.0], "has one label only, 3, so there is nothing to learn; correct the file"),
    ("regression", {}, [1, 2, -100], "has the label -100, which stands for none; leave these records out"),
    ("regression", {"activation": "sigmoid"}, [1, 5], "from 1 to 5, and objective.activation=sigmoid reaches 0 to 1"),
    ("embedding_regression", {}, [0, 5], "full_score=1 reaches -1 to 1; set objective.full_score=5, or divide the la"),
    ("embedding_regression", {"full_score": 5}, [0, 1], "the highest label is 1, and objective.full_score=5; if no la"),
    ("classification", {}, range(10), "has another label in each record, such as '0'; correct the file"),
    ("classification", {}, ["a|b", "a", "b"], "the classes look like several labels with '|' between them; if so, set"),
    ("classification", {}, ["very good", "good", "very bad", "bad"], ""),
    ("multi_label", {}, ["Sci-Fi, A;B", "B", "Crime, C;B"], "if it is the mark, set examples.separator=';'"),
    ("multi_label", {}, ["A|C, D", "B|A", "C, D", "C, D|B"], "if it is the mark, set examples.separator='|'"),
    ("multi_label", {}, ["a#b", "a", "b"], "if it is the mark, set examples.separator='#'"),
    ("multi_label", {}, ["a b", ["a"], "b"], "if it is the mark, set examples.separator=' '"),
    ("multi_label", {}, ["a", "b", "-100"], "1 of 3 records skipped: no label in 'label' (-100, beside a, b)"),
    ("multi_label", {}, ["New York, a", "Old York, New York", "a/b"], ""),
]


@pytest.mark.parametrize("objective, own, names, complaint", MISTAKES)
def test_labels_whose_form_shows_a_mistake(feeds, capsys, objective, own, names, complaint):
    try:
        lines = feeds(".jsonl", labeled(*names), objective=objective, own=own).store.class_lines
    except UserError as error:
        lines = [f"error: {error}"]
    text = "\n".join([capsys.readouterr().err, *lines])
    assert complaint in text and bool(complaint) == bool(re.search("error|warning|skipped", text)), text


def test_what_stands_for_no_label(feeds, capsys):
    keep = {"skip_missing_labels": False}
    assert feeds(".jsonl", labeled("a", "-", "b"), **keep).config.task.objective.classes == ("-", "a", "b")
    assert feeds(".jsonl", labeled(0, 1, -1), **keep).config.task.objective.classes == ("-1", "0", "1")
    assert capsys.readouterr().err == ""
    with pytest.raises(UserError, match=":2 has the label '' in 'label', which is blank"):
        feeds(".jsonl", labeled("a", ""), **keep)
    opened = feeds(".jsonl", labeled(0, 1, 2, -1), objective="regression")
    assert opened.store.examples("train", 64, ()).ragged.labels["label"].tolist() == [0.0, 1.0, 2.0, -1.0]
    assert capsys.readouterr().err == ""
    assert len(feeds(".csv", "text,label\na,1.5\nb,\nc,-1\n", objective="regression").store.train) == 2


TAGS = ["B-LOC", "B-PER", "O"]
PLAIN = "ada B-PER\nfed O\ncadiz B-LOC\n\nabc O\njed B-PER\n"
UNIVERSAL = "# text = ada fed\n1\tada\t_\tPROPN" + "\t_" * 6 + "\n2\tfed\t_\tVERB" + "\t_" * 6 + "\n\n"


def sentences(tokens: str, tags: str, numbers: bool = False) -> list[dict]:
    """The sentences of `PLAIN` as objects."""
    blocks = [[line.split() for line in block.splitlines()] for block in PLAIN.split("\n\n")]
    number = {name: index for index, name in enumerate(TAGS)} if numbers else {name: name for name in TAGS}
    return [{tokens: [word for word, _ in block], tags: [number[tag] for _, tag in block]} for block in blocks]


@pytest.mark.parametrize(
    "name, content, classes, first",
    [
        (".txt", PLAIN, TAGS, ["ada", "fed", "cadiz"]),
        (".txt", PLAIN.replace(" ", " \t "), TAGS, ["ada", "fed", "cadiz"]),
        (".txt", PLAIN.replace(" B-LOC", " B-LOC ").replace("\n", "\r\n"), TAGS, ["ada", "fed", "cadiz"]),
        (".txt", PLAIN.replace("fed", "10\u00a0000"), TAGS, ["ada", "10\u00a0000", "cadiz"]),
        (".txt", PLAIN.replace("fed", "\u3000"), TAGS, ["ada", "\u3000", "cadiz"]),
        (".txt", PLAIN.replace(" ", "\t").replace("fed", "new york"), TAGS, ["ada", "new york", "cadiz"]),
        (".txt", "# id 7 domain=en\n" + PLAIN.replace(" ", " _ _ "), TAGS, ["ada", "fed", "cadiz"]),
        (".txt", "#begin document (a)\n" + PLAIN + "\n#end document\n", TAGS, ["ada", "fed", "cadiz"]),
        (".txt", PLAIN + "\n# B-ORG\nfed O\n", ["B-LOC", "B-ORG", "B-PER", "O"], ["ada", "fed", "cadiz"]),
        (".txt", "word O\n" + PLAIN, TAGS, ["word", "ada", "fed", "cadiz"]),
        (".txt", "# O\n#tag B-PER\n" + PLAIN, TAGS, ["#", "#tag", "ada", "fed", "cadiz"]),
        (".tsv", "## korean-00\t\n" + PLAIN.replace(" ", "\t"), TAGS, ["ada", "fed", "cadiz"]),
        (".txt", lines(*sentences("tokens", "ner_tags")), TAGS, ["ada", "fed", "cadiz"]),
        (".jsonl", lines(*sentences("words", "tags")), TAGS, ["ada", "fed", "cadiz"]),
        (".json", json.dumps(sentences("tokens", "tags")), TAGS, ["ada", "fed", "cadiz"]),
        (".jsonl", lines(*sentences("tokens", "ner_tags", numbers=True)), ["0", "1", "2"], ["ada", "fed", "cadiz"]),
        (".conll", UNIVERSAL * 2, ["PROPN", "VERB"], ["ada", "fed"]),
        (".txt", UNIVERSAL.partition("\n")[2] * 2, ["PROPN", "VERB"], ["ada", "fed"]),
    ],
)
def test_tagged_files_are_known_by_their_content(feeds, name, content, classes, first):
    opened = feeds(name, content, objective="tagging")
    assert list(opened.config.task.objective.classes) == classes
    assert opened.store.train[0]["words"] == first


@pytest.mark.parametrize(
    "tags, marks, line",
    [
        (TAGS, True, ""),
        (["U_PER", "O"], True, ""),
        (["NOUN", "VERB"], False, "only token_accuracy is reported"),
        (["B-LOC", "I-LOC", "0"], False, "warning: .*, because of '0' among the tags; words outside of entities have"),
        (["0", "1", "2"], False, "numbers do not show which tags mark entities, so write their names"),
    ],
)
def test_tags_without_entities_are_mentioned(feeds, tags, marks, line):
    opened = feeds(".txt", "".join(f"abc {tag}\n\n" for tag in tags), objective="tagging")
    assert opened.config.task.objective.best_metric == ("f1" if marks else "token_accuracy")
    assert any(re.search(line, text) for text in printed(opened))
    assert any("only token_accuracy is reported" in text for text in printed(opened)) != marks
