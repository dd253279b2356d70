"""Word senses: pseudo-words of two words, and constructed vectors."""

import re

import numpy as np
import pytest

from bertjax.analysis.probing import senses
from bertjax.data import tokenizer
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer, _without_prefix_space
from bertjax.data.tokenizer_config import TokenizerConfig
from bertjax.runtime.errors import UserError


def write(path, rows) -> str:
    path.write_text("\n".join("\t".join(row) for row in [senses.COLUMNS, *rows]) + "\n", encoding="utf-8")
    return str(path)


def test_pseudo_words_are_told_apart_by_vectors_of_the_original_words(tmp_path, tokens, sentences):
    """`it` and `the` become one word; its vector is that of the original word in layer 1, noise in layer 0."""
    rows = []
    for sentence in sentences:
        found = {word.lower() for word in re.findall(r"\b(it|the)\b", sentence, re.IGNORECASE)}
        if len(found) == 1:
            [sense] = found
            pseudo = re.sub(rf"\b{sense}\b", "itthe", sentence, flags=re.IGNORECASE)
            rows.append(("itthe", sense, pseudo.replace('"', "")))
    records = senses.read(write(tmp_path / "pseudo.tsv", rows[:60]))
    assert {record["sense"] for record in records} == {"it", "the"}
    ragged, places = senses.encode(records, tokens, longest=32)
    first = tokens.encode(["itthe"])[0][0]
    assert set(ragged.tokens[places]) == {first}
    assert ragged.lengths.max() <= 32

    random = np.random.default_rng(0)
    states = random.normal(size=(len(records), 2, 16))
    states[:, 1] += [5 * np.eye(16)[int(record["sense"] == "it")] for record in records]
    accuracy, baseline = senses.score(states, records)
    assert accuracy[1] == 1
    shares = np.mean([record["sense"] == "it" for record in records])
    assert baseline == pytest.approx(max(shares, 1 - shares))
    assert accuracy[0] == pytest.approx(shares**2 + (1 - shares) ** 2, abs=0.2)


def test_the_nearest_other_occurrence_of_the_same_word_decides():
    records = [{"word": word, "sense": sense} for word, sense in ("aX", "aX", "aY", "aY", "bX", "bZ", "aW")]
    # Only X and Y of the word a have two occurrences, so four occurrences count.
    states = np.array([[1, 0], [1, 0.1], [1, 0.05], [0, 1], [0, 1], [1, 0], [0, 1]], float)[:, None]
    accuracy, baseline = senses.score(states, records)
    # Nearest: 0 -> 2 (Y, wrong), 1 -> 2 (Y, wrong), 2 -> 0 or 1 (X, wrong), 3 -> 6 (W, wrong).
    assert accuracy == [0]
    states[2, 0] = [0, 2]
    assert baseline == 0.5
    assert senses.score(states, records)[0] == [1]


def test_a_long_sentence_keeps_its_word(tokens):
    text = " ".join(["and"] * 80 + ["king"] + ["but"] * 80)
    ragged, places = senses.encode([{"word": "king", "sense": "x", "sentence": text}], tokens, longest=20)
    assert ragged.lengths == [20]
    assert ragged.tokens[places] == tokens.encode(["king"])[0][0]


@pytest.mark.parametrize(
    "rows, message",
    [
        ([("bank", "river", "The shore."), ("bank", "money", "The bank.")], "is not in"),
        ([("bank", "", "The bank.")], "has no sense"),
        ([("bank", "river", "The bank."), ("shore", "sea", "The shore.")], "no word with two senses"),
    ],
)
def test_bad_files_are_named(tmp_path, rows, message):
    path = write(tmp_path / "bad.tsv", rows)
    with pytest.raises(UserError, match=message) as error:
        senses.read(path)
    assert "bad.tsv" in str(error.value)


def test_a_table_of_senses_is_known_by_its_columns(tmp_path):
    assert senses.is_senses(write(tmp_path / "a.tsv", [("bank", "river", "The bank.")]))
    (tmp_path / "b.tsv").write_text("sentence\tlabel\nThe bank.\t1\n")
    assert not senses.is_senses(str(tmp_path / "b.tsv")) and not senses.is_senses("c.conllu")


def test_a_word_has_the_pieces_of_its_sentence():
    """Also for a byte-level BPE that puts no space before a text, and for a word that a prefix precedes."""
    corpus = ["the old harbour, the harbour of the unharbour"] * 20
    trained = tokenizer.train(corpus, TokenizerConfig(kind="byte_bpe", vocab_size=280))
    published = HuggingFaceTokenizer(_without_prefix_space(trained.model))
    sentence = "the old harbour, the unharbour"
    records = [{"word": word, "sense": "x", "sentence": sentence} for word in ("the", "harbour", "unharbour")]
    ragged, places = senses.encode(records, published, longest=64)
    running = published.encode_flat([records[0]["sentence"]])[0].tolist()
    for number, record in enumerate(records):
        start, stop = ragged.offsets[number] + 1, ragged.offsets[number + 1] - 1
        assert ragged.tokens[start:stop].tolist() == running
        word = f" {record['word']}"
        assert published.decode(ragged.tokens[places[number] : stop]).startswith(word.strip())
        assert published.piece(ragged.tokens[places[number]]).startswith("\u0120")
