"""Tasks of probes, senses and contextuality."""

import numpy as np
import pytest

from bertjax.analysis.labeled_files import format_of
from bertjax.analysis.probing import tasks
from bertjax.analysis.probing.similarity import Sample, contextuality
from bertjax.analysis.probing.tasks import labeled_task, sentences_of, units_of
from bertjax.data import tokenizer
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer, _without_prefix_space
from bertjax.data.tokenizer_config import TokenizerConfig
from bertjax.runtime.errors import UserError
from tests.labeled_files import file_of

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


@pytest.mark.parametrize("heads", [[2, 1, 0], [0, 0, 1], [0, 4, 1], [3, 3, "_"]])
def test_a_file_whose_heads_are_no_tree_is_probed_for_labels_only(tmp_path, heads):
    path = tmp_path / "c.conllu"
    path.write_text(conllu([[("a", "X", heads[0]), ("b", "Y", heads[1]), ("c", "X", heads[2])]] * 3))
    task = labeled_task("c", Tagged(heldout=str(path)), examples=0, seed=0)
    assert not task.has_trees and "c.conllu:1 starts a sentence whose heads are no tree" in task.without_trees


def write(path, rows) -> str:
    path.write_text("\n".join("\t".join(row) for row in [tasks.SENSE_COLUMNS, *rows]) + "\n", encoding="utf-8")
    return str(path)


def test_the_nearest_other_occurrence_of_the_same_word_decides():
    records = [{"word": word, "sense": sense} for word, sense in ("aX", "aX", "aY", "aY", "bX", "bZ", "aW")]
    # Only X and Y of the word a have two occurrences, so four occurrences count.
    states = np.array([[1, 0], [1, 0.1], [1, 0.05], [0, 1], [0, 1], [1, 0], [0, 1]], float)[:, None]
    accuracy, baseline = tasks.score_senses(states, records)
    # Nearest: 0 -> 2 (Y, wrong), 1 -> 2 (Y, wrong), 2 -> 0 or 1 (X, wrong), 3 -> 6 (W, wrong).
    assert accuracy == [0]
    states[2, 0] = [0, 2]
    assert baseline == 0.5
    assert tasks.score_senses(states, records)[0] == [1]


@pytest.mark.parametrize(
    "rows, message",
    [
        ([("bank", "river", "The shore."), ("bank", "money", "The bank.")], "is not in"),
        ([("bank", "", "The bank.")], "has no text in .sense"),
        ([("bank", "river", "The bank."), ("shore", "sea", "The shore.")], "no word with two senses"),
    ],
)
def test_bad_files_are_named(tmp_path, rows, message):
    path = write(tmp_path / "bad.tsv", rows)
    with pytest.raises(UserError, match=message) as error:
        tasks.read_senses(path)
    assert "bad.tsv" in str(error.value)


def test_a_word_has_the_pieces_of_its_sentence():
    """Also for a byte-level BPE that puts no space before a text, and for a word that a prefix precedes."""
    corpus = ["the old harbour, the harbour of the unharbour"] * 20
    trained = tokenizer.train(corpus, TokenizerConfig(kind="byte_bpe", vocab_size=280))
    published = HuggingFaceTokenizer(_without_prefix_space(trained.model))
    sentence = "the old harbour, the unharbour"
    records = [{"word": word, "sense": "x", "sentence": sentence} for word in ("the", "harbour", "unharbour")]
    ragged, places = tasks.encode_senses(records, published, longest=64)
    [running] = published.encode([sentence])
    for number, record in enumerate(records):
        start, stop = ragged.offsets[number] + 1, ragged.offsets[number + 1] - 1
        assert ragged.tokens[start:stop].tolist() == running
        word = f" {record['word']}"
        assert published.decode(ragged.tokens[places[number] : stop]).startswith(word.strip())
        assert published.piece(ragged.tokens[places[number]]).startswith("\u0120") == (number > 0)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def constructed(states: np.ndarray, types, sentences, is_random) -> Sample:
    return Sample(np.arange(len(states)), np.array(types), np.array(sentences), np.array(is_random, bool))


def test_measures_are_their_definitions():
    random = np.random.default_rng(0)
    states = random.normal(size=(30, 6)) + 0.5
    types, sentences = np.arange(30) % 4 - 1, np.arange(30) % 5 - 1
    words = constructed(states, types, sentences, np.arange(30) % 2)
    measured = contextuality(states, words)

    def pairs(part):
        return np.mean([cosine(a, b) for i, a in enumerate(part) for j, b in enumerate(part) if i != j])

    def principal(part):
        values = np.linalg.svd(part - part.mean(axis=0), compute_uv=False) ** 2
        return values[0] / values.sum()

    of_type = [states[types == number] for number in range(3)]
    of_sentence = [states[sentences == number] for number in range(4)]
    drawn = states[1::2]
    assert measured["self_similarity"] == pytest.approx(np.mean([pairs(part) for part in of_type]))
    assert measured["explained_variance"] == pytest.approx(np.mean([principal(part) for part in of_type]))
    assert measured["anisotropy"] == pytest.approx(pairs(drawn))
    assert measured["random_variance"] == pytest.approx(principal(drawn))
    intra = [np.mean([cosine(word, part.mean(axis=0)) for word in part]) for part in of_sentence]
    assert measured["intra_sentence_similarity"] == pytest.approx(np.mean(intra))
    assert measured["adjusted_self_similarity"] == pytest.approx(measured["self_similarity"] - measured["anisotropy"])


@pytest.mark.parametrize(
    "name, content, kind",
    [
        ("a.TSV.gz", "sentence\tlabel\na b\tx\n", LabeledText),
        ("a.json", '[{"sentence": "a b", "label": "x"}]', LabeledText),
        ("a.json", '[{"tokens": ["a", "b"], "tags": ["X", "O"]}]', Tagged),
        ("a.txt", "a\tX\nb\tO\n", Tagged),
    ],
)
def test_a_labeled_file_is_known_by_what_it_holds(tmp_path, name, content, kind):
    assert type(format_of(file_of(tmp_path, name, content))) is kind
