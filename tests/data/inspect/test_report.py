"""The report of a store, and the rule of Gowda & May on counts with a known result."""

import numpy as np
import pytest

from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.data.inspect import lengths
from bertjax.data.inspect.report import report, suggested_types
from bertjax.data.store import SPLITS, Split, SplitWriter, TokenStore, write_manifest


def test_pieces_that_are_frequent_enough_bound_a_vocabulary_that_breaks_the_rule():
    counts = np.array([1000] * 190 + [99] * 810)
    assert suggested_types(counts) == 200


@pytest.mark.parametrize("types", [500, 2000])
def test_zipf_extends_a_vocabulary_that_keeps_the_rule(types):
    zipf = 1_000_000 / np.arange(1, types + 1)
    assert suggested_types(zipf.astype(np.int64)) == pytest.approx(10_000 / 0.95, rel=0.02)


def test_equally_frequent_pieces_suggest_no_more_than_there_are():
    assert suggested_types(np.full(300, 1000)) == 300


def counts(**changes):
    return {"documents": 3, "sentences": 9, "words": 100, "tokens": 130, "unk": 0, "bytes": 600} | changes


@pytest.fixture
def reported(tmp_path):
    """reported(counts by source of the training split) -> the report of a store that has such counts."""
    trained = tokenizer.train(["some words"], TokenizerConfig(vocab_size=30, byte_fallback=False, kind="char"))
    (tmp_path / "tokenizer").mkdir()
    trained.save(tmp_path / "tokenizer")
    for split in SPLITS:
        writer = SplitWriter(tmp_path, split)
        writer.append(np.array([7, 8], np.uint16), np.array([2]), np.array([1]))
        writer.close()

    def report_of(train):
        contents = {
            "counts": {"train": train, "heldout": dict.fromkeys(train, counts())},
            "duplicates": dict.fromkeys(train, 2),
            "skipped": dict.fromkeys(train, 0),
            "longest": [[99, next(iter(train)), "file:7"]],
        }
        write_manifest(tmp_path, {}, trained, contents)
        return report(TokenStore.open(tmp_path))

    return report_of


def test_the_report_counts_what_a_store_has(reported):
    text = reported({"corpus": counts()})
    assert "longest documents: file:7 99" in text and "duplicates dropped: 2 documents\n" in text
    assert "1.30" in text and "warning" not in text


def test_sources_are_reported_separately(reported):
    text = reported({"a": counts(), "b": counts(tokens=250)})
    assert "duplicates dropped: 4 documents (a 2, b 2)" in text and "a/file:7 99" in text
    assert [line.split()[-2] for line in text.splitlines() if line.startswith("  ")][1:3] == ["1.30", "2.50"]


def test_a_tokenizer_that_does_not_fit_gets_a_warning(reported):
    text = reported({"a": counts(unk=2), "b": counts(tokens=301)})
    warnings = [line for line in text.splitlines() if line.startswith("warning")]
    assert ["1.5% of the tokens of train a are [UNK]" in warnings[0], "train b takes 3.0 tokens" in warnings[1]] == [
        True
    ] * 2
    assert len(warnings) == 2
    assert "warning" not in reported({"a": counts(unk=1), "b": counts(tokens=300)})


def test_histogram_counts_every_length_once(tmp_path, monkeypatch):
    monkeypatch.setattr(lengths, "COUNTED_AT_ONCE", 3)
    sentences = np.array([1, 1, 2, 3, 4, 100, 1000])
    writer = SplitWriter(tmp_path, "train")
    writer.append(np.zeros(sentences.sum(), np.uint16), sentences, np.array([2, 4, 1]))
    writer.close()
    split = Split(tmp_path, "train", "<u2")
    for what, expected in (("sentence", sentences), ("document", [2, 109, 1000])):
        edges, numbers = lengths.histogram(split, what)
        assert numbers.sum() == len(expected) and numbers[0] and numbers[-1]
        np.testing.assert_array_equal(numbers, np.histogram(expected, edges)[0])
