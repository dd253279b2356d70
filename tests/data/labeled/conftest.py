"""Fixtures of the tests of labeled files: a tokenizer with one token per letter, and a start with two files."""

import pytest

from bertjax.config.config import from_dict
from bertjax.data import tokenizer
from bertjax.training.resolve import open_feeds
from tests import labeled_files

LETTERS = "abcdefghijklmnopqrstuvwxyz.,?"


@pytest.fixture(scope="session")
def spelling(tmp_path_factory):
    """[PAD] [UNK] [CLS] [SEP] [MASK] are 0 to 4; a word is its first letter and then ##letters."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    path = tmp_path_factory.mktemp("letters") / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return tokenizer.from_model(path, lowercase=True)


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory) -> str:
    return str(labeled_files.vocabulary(tmp_path_factory.mktemp("vocabulary") / "vocab.txt"))


@pytest.fixture
def open_files(tmp_path, vocabulary):
    """open_files(objective, suffix, training, heldout, **examples) -> the feeds of a run before it compiles anything.

    A file without a suffix is a folder with one file.
    """

    def open_run(objective: dict, suffix: str, training: str | bytes, heldout: str | bytes, **examples):
        files = {}
        for split, content in (("train", training), ("heldout", heldout)):
            path = tmp_path / f"{split}{suffix}"
            files[split] = str(path)
            if not suffix:
                path.mkdir(exist_ok=True)
                path /= "1.txt"
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        config = {
            "data": {"tokenizer": {"model": vocabulary, "lowercase": True}},
            "tasks": {"toy": {"objective": objective, "examples": files | examples}},
            "optimizer": {"warmup_share": 0.1},
            "stages": [{"epochs": 1.0, "seq_len": 64, "examples": 4}],
        }
        feeds = open_feeds(from_dict(config))
        feeds.plan()
        return feeds

    return open_run
