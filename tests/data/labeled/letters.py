"""A tokenizer with one token per letter, so that expected tokens are easy to write."""

from pathlib import Path

from bertjax.data import tokenizer
from bertjax.data.tokenizer import Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz.,?"


def make(folder: Path) -> Tokenizer:
    """[PAD] [UNK] [CLS] [SEP] [MASK] are 0 to 4; a word is its first letter and then ##letters."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    path = folder / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return tokenizer.from_model(path, lowercase=True)
