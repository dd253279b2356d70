"""Splits in memory whose tokens are all different, and the examples that a format makes of them."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from hypothesis import strategies as st

from bertjax.data import formats
from bertjax.data.examples import Examples
from bertjax.data.formats import Block, TextFormat

CLS, SEP = 1, 2
FIRST_TOKEN = 10

# The lengths of the sentences of each document: documents of one sentence and sentences of one token among them.
documents = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=2, max_size=8)


def split_of(documents: list[list[int]]) -> SimpleNamespace:
    """The split whose documents have sentences of these lengths; token i is FIRST_TOKEN + i."""
    sentences = np.cumsum([0, *(length for document in documents for length in document)])
    offsets = np.cumsum([0, *(len(document) for document in documents)])
    tokens = FIRST_TOKEN + np.arange(sentences[-1])
    return SimpleNamespace(tokens=tokens, sentences=sentences, documents=offsets, range=None)


def large() -> SimpleNamespace:
    rng = np.random.default_rng(0)
    return split_of([rng.geometric(1 / 20, rng.integers(1, 200)).tolist() for _ in range(300)])


def document_of(split: SimpleNamespace, tokens: np.ndarray) -> np.ndarray:
    return np.searchsorted(split.sentences[split.documents], tokens, side="right") - 1


def made(examples: TextFormat, split: SimpleNamespace, seq_len: int, seed: int = 0, at_once: int = 1 << 20) -> Block:
    """Return a split as one block, joined from blocks of about `at_once` sentences."""
    size, formats.BLOCK_SENTENCES = formats.BLOCK_SENTENCES, at_once
    try:
        blocks = list(examples.blocks(split, seq_len, seed))
    finally:
        formats.BLOCK_SENTENCES = size
    totals = (sum(getattr(block, name) for block in blocks) for name in ("lost_tokens", "repeated_tokens"))
    return Block(np.concatenate([block.ranges for block in blocks]), *totals)


def assert_same(one: Block, other: Block) -> None:
    for field in dataclasses.fields(Block):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


def examples_of(examples: TextFormat, split: SimpleNamespace, ranges: np.ndarray, path: Path) -> Examples:
    """The examples with these ranges."""
    np.save(path, ranges)
    special = {"pad_id": 0, "cls_id": CLS, "sep_id": SEP, "mask_id": 3}
    tokenizer = SimpleNamespace(
        vocab_size=FIRST_TOKEN + len(split.tokens),
        special_ids=frozenset(special.values()),
        **special,
        continuation_ids=frozenset(),
        cls_last=False,
        pair_separators=1,
    )
    return examples.open(SimpleNamespace(split=lambda name: split, tokenizer=tokenizer), "train", path)


def token_lists(examples: Examples) -> list[list[int]]:
    """The tokens of every example."""
    return [tokens.tolist() for tokens in examples.take(np.arange(len(examples))).token_lists()]
