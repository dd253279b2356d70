"""Several sources: the share of each in the tokenizer's sample, partners from the same one, and units of documents."""

import collections
import dataclasses
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from bertjax.data.config import DataConfig, SourceConfig, TokenizerConfig
from bertjax.data.preparation.prepare import prepare
from bertjax.data.sources.base import unit_of
from bertjax.data.store import SPLITS
from bertjax.runtime.errors import UserError

ALPHABETS = {"big": "abcdefgh", "lone": "mnop", "small": "uvwxyz"}


def text_in(letters, documents, seed=0):
    draw = np.random.default_rng(seed)

    def sentence():
        words = ["".join(draw.choice(list(letters), draw.integers(2, 6))) for _ in range(8)]
        return " ".join(words).capitalize() + "."

    return "\n\n".join("\n".join(sentence() for _ in range(6)) for _ in range(documents))


@pytest.fixture
def config(tmp_path):
    """A large source, one with a single document, and a small one, each with letters of its own."""
    for name, documents in (("big", 120), ("lone", 1), ("small", 30)):
        (tmp_path / f"{name}.txt").write_text(text_in(ALPHABETS[name], documents))
    named = {name: SourceConfig(str(tmp_path / f"{name}.txt")) for name in ALPHABETS}
    tokenizer = TokenizerConfig(kind="char", vocab_size=60, byte_fallback=False)
    return DataConfig(sources=named, store=str(tmp_path / "stores"), tokenizer=tokenizer, heldout_share=0.2, workers=0)


def test_a_source_of_which_nothing_is_left_is_refused(config, tmp_path):
    """Each of its documents is in another source, in other letters: BERT's tokenizer gives both the same tokens."""
    text = (tmp_path / "big.txt").read_text()
    copies = "\n\n".join(text.split("\n\n")[:20]).upper().replace("A", "\u00c1").replace("B", "B\u00ad")
    (tmp_path / "copies.txt").write_text(copies)
    named = config.sources | {"copies": SourceConfig(str(tmp_path / "copies.txt"))}
    with pytest.raises(
        UserError, match="^data.sources.copies has 20 documents, and each is in big or lone or small too"
    ):
        prepare(dataclasses.replace(config, sources=named))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_all_parts_of_a_unit_are_on_one_side_of_the_split(config, tmp_path, kind):
    texts = text_in("abcdefgh", 300, seed=1).split("\n\n")  # more than a batch of Parquet
    books = [f"book {number // 5}" for number in range(len(texts))]
    assert unit_of({"book": 7.0}, "book", "") == unit_of({"book": 7}, "book", "") == "7"
    if kind == "jsonl":
        rows = [json.dumps({"text": text, "book": book}) for text, book in zip(texts, books, strict=True)]
        (tmp_path / "books.jsonl").write_text("\n".join(rows))
    else:
        pyarrow.parquet.write_table(pyarrow.table({"text": texts, "book": books}), tmp_path / "books.parquet")
    named = {"books": SourceConfig(str(tmp_path / f"books.{kind}"), group_field="book")}
    store = prepare(dataclasses.replace(config, sources=named))
    where = collections.defaultdict(set)
    book_of = dict(zip((" ".join(text.split()) for text in texts), books, strict=True))
    for split in SPLITS:
        part = store.split(split)
        ends = part.sentences[part.documents]
        for start, stop in zip(ends[:-1], ends[1:], strict=True):
            where[book_of[store.tokenizer.decode(part.tokens[start:stop].tolist())]].add(split)
    assert len(where) == 60 and all(len(sides) == 1 for sides in where.values())
    assert {"train", "heldout"} == set().union(*where.values())
