"""Nothing is lost unseen: all that is read is in the store, or counted as left out, in documents and characters."""

import dataclasses
import gzip
import hashlib
import json
import unicodedata

import numpy as np
import pytest

from bertjax.data import sources
from bertjax.data.config import TokenizerConfig
from bertjax.data.preparation import duplicates, shards
from bertjax.data.preparation.cleaning import READ, SKIPPED, WAYS, check_ledger
from bertjax.data.preparation.duplicates import PACKED_KEY
from bertjax.data.preparation.local import Local
from bertjax.data.preparation.prepare import prepare
from bertjax.data.preparation.steps import content
from bertjax.data.sources import records
from bertjax.data.store import SPLITS
from bertjax.runtime.errors import RunFailed
from tests.data.preparation.corpora import write_corpus
from tests.data.preparation.test_parts import CLEANING, mixed


def documents_of(store, split):
    """The tokens of each document of a split."""
    part = store.split(split)
    ends = part.sentences[part.documents]
    return [part.tokens[start:stop].tobytes() for start, stop in zip(ends[:-1], ends[1:], strict=True)]


def entry(store, name, source="corpus"):
    return store.manifest["ledger"][source].get(name, [0, 0])


@pytest.mark.parametrize("settings", [CLEANING, {"share": 0.5}], ids=["cleaned", "share"])
def test_what_is_read_is_what_is_kept_and_left_out(config, tmp_path, settings, capsys):
    config = mixed(tmp_path, tokenizer=config.tokenizer, **settings)
    store = prepare(config)
    for name, source in config.sources.items():
        errors = []
        read = list(sources.documents(source.corpus, "text", on_bad=errors.append))
        assert entry(store, READ, name) == [len(read), sum(len(document.text) for document in read)]
        assert entry(store, SKIPPED, name) == [len(errors), sum(error.size for error in errors)]
        sums = np.sum([entry(store, way, name) for way in WAYS], axis=0)
        assert entry(store, READ, name) == sums.tolist()
        assert entry(store, "filtered", name)[0] == (1 if name == "web" and settings is CLEANING else 0)
        assert (entry(store, "outside_share", name)[0] > 0) == ("share" in settings)
    check_ledger(store.manifest["ledger"])
    assert "not read: 3 bad documents, at least 9 bytes" in capsys.readouterr().out


class Losing(Local):
    """A runner that loses a document of the store."""

    def encode(self, config, partial, read, trained):
        [first, *_] = shards.read_text(partial, 0)
        duplicates.add(duplicates.path(partial), np.array([first.key.packed()], PACKED_KEY))
        return super().encode(config, partial, read, trained)


def test_a_store_that_lacks_a_document_is_not_made(config):
    with pytest.raises(RunFailed, match="of source corpus, 200 documents .* were read, and 199 documents .* no store"):
        prepare(config, Losing())


def test_the_held_out_documents_of_the_embedded_corpus_are_those_of_published_results():
    documents = [document.text for document in sources.documents("embedded:en", "text")]
    expected = [hashlib.sha256(unicodedata.normalize("NFC", text).encode()).digest()[:16] for text in documents]
    assert [content(text).digest for text in documents] == expected


def long_corpus(tmp_path):
    """Good documents around a line, a document and a line in a document that are too long: name -> texts to keep."""
    write_corpus(tmp_path / "corpus.txt", documents=40)
    good = (tmp_path / "corpus.txt").read_text().split("\n\n")[:40]
    long = ["word " * 900, "A sentence of words.\n" * 200 + "Its end.", "Start.\n" + "word " * 900 + "\nEnd."]
    texts = good[:20]
    for bad, more in zip(long, (good[20:25], good[25:30], good[30:]), strict=True):
        texts = [*texts, bad, *more]
    (tmp_path / "corpus.txt").write_text("\n\n".join(texts))
    objects = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress("\n".join(objects).encode()))
    return good, long


@pytest.mark.parametrize("name", ["corpus.txt", "corpus.jsonl.gz"])
def test_a_document_that_is_too_long_is_skipped_alone_with_its_bytes(config, tmp_path, monkeypatch, name, capsys):
    monkeypatch.setattr(records, "LONGEST_BYTES", 3000)
    good, long = long_corpus(tmp_path)
    config = dataclasses.replace(config, corpus=str(tmp_path / name), heldout_share=0.3, on_bad_document="skip")
    store = prepare(dataclasses.replace(config, tokenizer=TokenizerConfig(kind="char", vocab_size=400), workers=0))
    assert sum(len(documents_of(store, split)) for split in SPLITS) == len(good)
    number, size = entry(store, SKIPPED)
    least = sum(len(text.encode()) - text.count("\n") for text in long)
    assert number == 3 and least <= size <= least + 600
    output = capsys.readouterr()
    assert f"not read: 3 bad documents, at least {size:,} bytes" in output.out
    assert output.err.count(" has more than 3,000 bytes (4,") >= 2 and "and is not read; " in output.err
