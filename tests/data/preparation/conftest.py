"""Fixtures for the preparation of a corpus."""

import pytest

from bertjax.data.config import DataConfig, TokenizerConfig
from tests.data.preparation.corpora import write_corpus


@pytest.fixture
def config(tmp_path):
    write_corpus(tmp_path / "corpus.txt", documents=200)
    return DataConfig(
        corpus=str(tmp_path / "corpus.txt"),
        store=str(tmp_path / "stores"),
        tokenizer=TokenizerConfig(vocab_size=400),
        workers=0,  # each takes longer to start than so small a corpus; tests of workers name a number
    )
