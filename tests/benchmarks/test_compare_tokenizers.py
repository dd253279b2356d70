"""The tables of docs/results/korean.md: shares are what they are called, and the page shows what the code prints."""

import itertools
from pathlib import Path

from benchmarks import compare_tokenizers
from bertjax.data.sources import documents

PAGE = (Path(__file__).parents[2] / "docs" / "results" / "korean.md").read_text()


def test_the_page_shows_what_normalizers_do():
    texts = (document.text for document in itertools.islice(documents("embedded:ko", "text"), 12))
    assert compare_tokenizers.normalizers([line for text in texts for line in text.splitlines()], 1500) in PAGE


def test_the_page_shows_what_splitters_do():
    assert compare_tokenizers.splitters([document.text for document in documents("embedded:ko", "text")]) in PAGE
