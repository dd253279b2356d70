"""Fixtures: real sentences, and a tokenizer of every kind trained on them."""

import itertools

import pytest

from bertjax.data import tokenizer
from bertjax.data.sources import documents
from bertjax.data.tokenizer_config import HUGGINGFACE_KINDS, SENTENCEPIECE_KINDS, TokenizerConfig

KINDS = SENTENCEPIECE_KINDS + HUGGINGFACE_KINDS


def sentences_of(corpus: str, count: int) -> list[str]:
    texts = [document.text for document in itertools.islice(documents(corpus, "text"), count)]
    return [line for text in texts for line in text.splitlines() if line]


@pytest.fixture(scope="session")
def sentences():
    return sentences_of("embedded:en", 12)


@pytest.fixture(scope="session")
def korean():
    return sentences_of("embedded:ko", 12)


@pytest.fixture(scope="session")
def trained(sentences):
    return {kind: tokenizer.train(sentences, TokenizerConfig(kind=kind, vocab_size=800)) for kind in KINDS}
