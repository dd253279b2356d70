"""Fixtures of the tests of labeled files: a tokenizer with one token per letter, so that tokens are easy to write."""

import pytest

from bertjax.data import tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz.,?"


@pytest.fixture(scope="session")
def spelling(tmp_path_factory):
    """[PAD] [UNK] [CLS] [SEP] [MASK] are 0 to 4; a word is its first letter and then ##letters."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    path = tmp_path_factory.mktemp("letters") / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return tokenizer.from_model(path, lowercase=True)
