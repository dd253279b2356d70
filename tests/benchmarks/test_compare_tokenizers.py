"""The tables of docs/results/korean.md: shares are what they are called, and the page shows what the code prints."""

import itertools
from pathlib import Path

from benchmarks import compare_tokenizers
from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.data.sources import documents

PAGE = (Path(__file__).parents[2] / "docs" / "results" / "korean.md").read_text()


def test_shares():
    tokens = tokenizer.train(["ab abc ab abc"] * 9, TokenizerConfig(kind="wordpiece", vocab_size=15))
    assert [tokens.piece(i) for i in range(7, 15)] == ["a", "b", "c", "##a", "##b", "##c", "ab", "abc"]
    measured = compare_tokenizers.measure(tokens, ["ab abcab", "x"])
    assert measured == compare_tokenizers.Measured(fertility=5 / 3, unknown=1 / 5, lost_words=1 / 3, bytes=0.0)


def test_the_page_shows_what_normalizers_do():
    texts = (document.text for document in itertools.islice(documents("embedded:ko", "text"), 12))
    assert compare_tokenizers.normalizers([line for text in texts for line in text.splitlines()], 1500) in PAGE


def test_the_page_shows_what_splitters_do():
    assert compare_tokenizers.splitters([document.text for document in documents("embedded:ko", "text")]) in PAGE
