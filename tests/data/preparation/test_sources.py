"""Several sources: the share of each in the tokenizer's sample, partners from the same one, and units of documents."""

import collections
import dataclasses
import json
import math

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from bertjax.data.config import DataConfig, SourceConfig, TokenizerConfig
from bertjax.data.formats.segments import SegmentPairs
from bertjax.data.formats.sentence_pairs import SentenceOrder
from bertjax.data.plan import Spec, open_or_make
from bertjax.data.preparation import pieces
from bertjax.data.preparation.prepare import prepare
from bertjax.data.store import SPLITS
from bertjax.runtime.errors import UserError
from tests.data.preparation.corpora import store_path

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


@pytest.mark.parametrize("split", SPLITS)
def test_a_random_partner_is_from_the_same_source(config, split):
    """One in another script would be told by it, and half of the negatives with it."""
    store = prepare(config)
    plan = open_or_make(store, Spec(split, SegmentPairs(), 48, seed=0))
    part = store.split(split)
    a, _, b, _, label = np.load(plan.examples.ranges).T
    documents = [np.searchsorted(part.sentences[part.documents], tokens, side="right") - 1 for tokens in (a, b)]
    edges = [start for start, _ in store.manifest["sources"][split].values()]
    first, second = (np.searchsorted(edges, document, side="right") for document in documents)
    is_random = documents[0] != documents[1]
    np.testing.assert_array_equal(is_random, label == 1)
    # A source with one document has partners of the next one, which has others of its own.
    lone = [stop - start == 1 for start, stop in store.manifest["sources"][split].values()]
    is_lone = np.array(lone)[first - 1] | np.array(lone)[second - 1]
    assert is_random.sum() > 10 and (first == second)[is_random & ~is_lone].all()
    whole = open_or_make(store, Spec(split, SentenceOrder(), 48, seed=0))
    assert whole.counts.split_tokens == plan.counts.split_tokens == len(part.tokens)


@pytest.mark.parametrize("seen", [{"weight": 4.0}, {"token_share": 0.5}, {}], ids=["weight", "share", "smoothing"])
def test_the_sample_of_the_tokenizer_follows_what_training_draws(config, monkeypatch, seen):
    """Also if a source is smaller than its share: training repeats it too."""
    samples = []
    monkeypatch.setattr(pieces.reading, "save_sample", _kept(pieces.reading.save_sample, samples))
    others = {"token_share": 0.25} if "token_share" in seen else {}
    named = {name: dataclasses.replace(source, **others) for name, source in config.sources.items()}
    named["small"] = dataclasses.replace(named["small"], **(seen or {}))
    drawn = dataclasses.replace(config, sources=named, smoothing=1.0 if seen else 0.0)
    drawn = dataclasses.replace(drawn, tokenizer=dataclasses.replace(config.tokenizer, sample_characters=12_000))
    prepare(drawn)
    count = collections.Counter(
        name for text in samples for name, letters in ALPHABETS.items() for letter in text.lower() if letter in letters
    )
    # The large source has four times the text of the small one; that with one document is held out.
    expected = {"weight": 1.0, "token_share": 2.0}.get(next(iter(seen), ""), 1.0)
    assert abs(count["small"] / count["big"] - expected) < 0.15 * expected, count
    assert store_path(drawn) != store_path(dataclasses.replace(drawn, sources=config.sources, smoothing=1.0))


def _kept(save, samples):
    def keep(texts, folder):
        texts = list(texts)
        samples.extend(texts)
        save(texts, folder)

    return keep


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_all_parts_of_a_unit_are_on_one_side_of_the_split(config, tmp_path, kind):
    texts = text_in("abcdefgh", 300, seed=1).split("\n\n")  # more than a batch of Parquet
    books = [f"book {number // 5}" for number in range(len(texts))]
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


def test_a_unit_that_is_missing_is_named(config, tmp_path):
    (tmp_path / "books.jsonl").write_text('{"text": "One.", "book": null}\n')
    for name, book in (("nan", math.nan), ("empty", b"")):
        pyarrow.parquet.write_table(pyarrow.table({"text": ["One."], "book": [book]}), tmp_path / f"{name}.parquet")
    for path, message in (
        ("books.jsonl", r"books.jsonl:1 has no field 'book' \(it has text\); set data.sources.NAME.group_field"),
        ("nan.parquet", r"nan.parquet:1 has no field 'book' \(it has none\); set data.sources.NAME.group_field"),
        ("empty.parquet", r"empty.parquet:1 has no field 'book' \(it has none\); set data.sources.NAME.group_field"),
        ("big.txt", "is text without fields; remove data.sources.NAME.group_field=book"),
    ):
        named = {"books": SourceConfig(str(tmp_path / path), group_field="book")}
        with pytest.raises(UserError, match=message):
            prepare(dataclasses.replace(config, sources=named))
