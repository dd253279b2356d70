"""Labeled files as tasks of probes: words with labels and trees, texts with labels."""

import numpy as np
import pytest

from bertjax.analysis.probing.tasks import labeled_task, sentences_of, units_of
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText
from bertjax.runtime.errors import UserError

# (word, upos, head) of sentences; `kings` is three pieces or more in a small vocabulary.
SENTENCES = [
    [("The", "DET", 2), ("king", "NOUN", 3), ("sleeps", "VERB", 0), (".", "PUNCT", 3)],
    [("Kings", "NOUN", 2), ("sleep", "VERB", 0)],
    [("Sleep", "VERB", 0), ("!", "PUNCT", 1)],
    [("It", "PRON", 2), ("was", "VERB", 0), ("a", "DET", 4), ("king", "NOUN", 2)],
    [("Kings", "NOUN", 0)],
    [("A", "DET", 2), ("king", "NOUN", 0)],
]


def conllu(sentences) -> str:
    lines = []
    for words in sentences:
        lines += [f"{i}\t{w}\t_\t{tag}\t_\t_\t{head}\t_\t_\t_" for i, (w, tag, head) in enumerate(words, 1)] + [""]
    return "\n".join(lines) + "\n"


@pytest.fixture
def path(tmp_path) -> str:
    path = tmp_path / "a.conllu"
    path.write_text(conllu(SENTENCES))
    return str(path)


def test_words_have_their_labels_and_trees(path, tokens):
    task = labeled_task("a", Tagged(heldout=path), examples=0, seed=0, heldout=path)
    assert task.has_trees and task.classes == ("DET", "NOUN", "PRON", "PUNCT", "VERB")
    assert sorted(len(record["words"]) for record in task.train) == [1, 2, 2, 2, 4, 4]
    units = units_of(task, task.train, tokens, longest=6)  # windows of four pieces
    assert np.bincount(units.unit_of[units.unit_of >= 0]).tolist() == [1] * 15
    assert len(units.types) == len(units.labels) == 15
    of_word = {word: tag for words in SENTENCES for word, tag, _ in words}
    assert [task.classes[label] for label in units.labels] == [of_word[word] for word in units.types]
    for token, unit in zip(units.ragged.tokens, units.unit_of, strict=True):
        if unit >= 0:
            assert token == tokens.encode([units.types[unit]])[0][0]

    for record, sentence in zip(task.train, sentences_of(task.train), strict=True):
        assert units.types[sentence.words] == record["words"]
        for word, (head, tag) in enumerate(zip(record["heads"], record["tags"], strict=True)):
            assert not head or sentence.distances[word, head - 1] == 1
            assert sentence.is_word[word] == (tag != "PUNCT")


def test_pooling_of_words_and_texts(path, tokens, tmp_path):
    words = labeled_task("a", Tagged(heldout=path), examples=0, seed=0, heldout=path, pooling="mean")
    units = units_of(words, words.train, tokens, longest=32)
    of_unit = [units.ragged.tokens[units.unit_of == unit].tolist() for unit in range(len(units.types))]
    assert of_unit == [tokens.encode([word])[0] for word in units.types] and max(map(len, of_unit)) > 1
    (tmp_path / "a.tsv").write_text("sentence\tlabel\n" + "A king.\tone\nKings sleep.\ttwo\n" * 3)
    texts = labeled_task("a", LabeledText(heldout=str(tmp_path / "a.tsv")), examples=0, seed=0, pooling="first")
    units = units_of(texts, texts.train, tokens, longest=32)
    cls = units.ragged.tokens[units.unit_of >= 0]
    assert len(cls) == len(texts.train) and set(cls.tolist()) == {tokens.cls_id}


def test_a_third_is_held_out_of_a_single_file(path):
    task = labeled_task("a", Tagged(heldout=path), examples=0, seed=0)
    places = [{record["_where"] for record in part} for part in (task.train, task.heldout)]
    assert len(task.train) == 4 and len(task.heldout) <= 2 and not places[0] & places[1]
    assert len(labeled_task("a", Tagged(heldout=path), examples=3, seed=0, heldout=path).train) == 3


def test_the_unit_of_a_classified_file_is_the_text(tmp_path, tokens):
    path = tmp_path / "b.tsv"
    path.write_text("sentence\tlabel\nThe king sleeps.\tgood\nIt was a king.\tbad\nIt was.\tugly\n")
    task = labeled_task("b", LabeledText(heldout=str(path)), examples=0, seed=0, heldout=str(path))
    units = units_of(task, task.train, tokens, longest=32)
    np.testing.assert_array_equal(units.unit_of, units.ragged.token_examples)
    assert not task.has_trees and not units.types
    labels = [task.classes[label] for label in units.labels]
    assert labels == [record["label"] for record in task.train]


@pytest.mark.parametrize("heads", [[2, 1, 0], [0, 0, 1], [0, 4, 1], [3, 3, "_"]])
def test_a_file_whose_heads_are_no_tree_is_probed_for_labels_only(tmp_path, heads):
    path = tmp_path / "c.conllu"
    path.write_text(conllu([[("a", "X", heads[0]), ("b", "Y", heads[1]), ("c", "X", heads[2])]] * 3))
    task = labeled_task("c", Tagged(heldout=str(path)), examples=0, seed=0)
    assert not task.has_trees and "c.conllu:1 starts a sentence whose heads are no tree" in task.without_trees


def test_labels_that_only_the_second_file_has_are_left_out(path, tmp_path):
    other = tmp_path / "other.conllu"
    other.write_text(conllu([[("Oh", "INTJ", 0)], [("king", "NOUN", 0)]]))
    task = labeled_task("a", Tagged(heldout=path), examples=0, seed=0, heldout=str(other))
    assert [record["words"] for record in task.heldout] == [["king"]]
    with pytest.raises(UserError, match="1 classes to probe"):
        labeled_task("a", Tagged(heldout=str(other)), examples=1, seed=0)
