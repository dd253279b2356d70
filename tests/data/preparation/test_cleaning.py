"""Filters and near-duplicates in a preparation: counted, listed, the same for any workers; errors name the filter."""

import collections
import dataclasses
import json
import re
import shutil

import pytest

from bertjax.data.config import NearDuplicates
from bertjax.data.filters import Filter
from bertjax.data.filters.rules import Length, Personal
from bertjax.data.inspect.report import show_dropped
from bertjax.data.preparation import cleaning as steps
from bertjax.data.preparation import pieces
from bertjax.data.preparation.cleaning import read_dropped
from bertjax.data.preparation.prepare import prepare
from bertjax.data.sources import documents
from bertjax.runtime.errors import UserError
from tests.data.preparation.corpora import content


@dataclasses.dataclass(frozen=True)
class OwnRule(Filter):
    """A rule of a user: documents with a word are dropped, and others fail."""

    word: str = "fails"
    answer: object = None

    def keep(self, document):
        if self.word in document.text:
            raise ValueError("no such\nthing \x1b[1m")
        return self.answer


@pytest.fixture
def cleaned(config, tmp_path):
    """200 documents, of which some are copied with a changed sentence, and documents that filters drop or change."""
    texts = [document.text for document in documents(config.corpus, "text")]
    lines = []
    for i, text in enumerate(texts):
        lines.append(text)
        if i % 10 == 0:
            lines.append(text.replace(".", ". Edited", 1))
        if i % 25 == 0:
            lines.append("Too short.")
    lines += ["Write to someone@mail.org or to nobody at all. " * 3, texts[3]]
    (tmp_path / "web.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in lines))
    return dataclasses.replace(
        config,
        corpus=str(tmp_path / "web.jsonl"),
        filters={"personal": Personal(), "length": Length(fewest_words=5)},
        near_duplicates=NearDuplicates(drop=True, ngram=2),
        workers=0,
    )


def test_what_is_left_out_is_counted_listed_and_shown(cleaned, capsys):
    store = prepare(cleaned)
    manifest = store.manifest
    listed = list(read_dropped(store.path))
    by_rule = collections.Counter(line["rule"] for line in listed)
    kept = sum(counts["documents"] for counts in manifest["splits"].values())
    assert kept + len(listed) == sum(1 for _ in documents(cleaned.corpus, "text"))
    assert by_rule == {"length": 8, "duplicate": 1, "near-duplicate": manifest["cleaning"]["near_duplicates"]["corpus"]}
    assert manifest["cleaning"]["dropped"] == {"corpus": {"length": {"fewer than 5 words": 8}}}
    assert manifest["cleaning"]["changed"] == {"corpus": {"personal": [1, 3]}}
    assert manifest["duplicates"] == {"corpus": 1} and 10 < by_rule["near-duplicate"] <= 20
    printed = capsys.readouterr().out
    assert "dropped by length: 8 documents, fewer than 5 words" in printed
    assert "changed by personal: 1 document, 3 changes" in printed and "clusters of near-duplicates: " in printed
    shown = show_dropped(store.path, 2)
    assert "length, fewer than 5 words: 8 documents\n  corpus/web.jsonl:3: Too short.\n" in shown
    assert shown.count("Too short.") == 2 and "stays" in shown


def test_any_number_of_workers_writes_the_same_bytes(cleaned, tmp_path, monkeypatch):
    (tmp_path / "web").mkdir()
    lines = (tmp_path / "web.jsonl").read_text().split("\n")
    for number in range(3):
        (tmp_path / "web" / f"{number}.jsonl").write_text("\n".join(lines[70 * number : 70 * number + 90]))
    monkeypatch.setattr(pieces, "FEWEST_BYTES", 1)
    monkeypatch.setattr(steps, "BATCH_CHARACTERS", 5000)
    one, three = (
        prepare(dataclasses.replace(cleaned, corpus=f"{tmp_path}/web", workers=workers, store=f"{tmp_path}/{workers}"))
        for workers in (0, 3)
    )
    assert content(one.path) == content(three.path)


@pytest.mark.parametrize(
    "rule, workers, complaint",
    [
        (OwnRule(word=""), 2, "ValueError: no such"),
        (OwnRule(answer=False), 0, "TypeError: keep returned False, not a reason or None"),
        (OwnRule(answer=""), 0, "TypeError: keep returned '', not a reason or None"),
    ],
)
def test_a_filter_that_fails_is_named_with_the_document(config, tmp_path, monkeypatch, rule, workers, complaint):
    """Also by a worker, which imports the module of the filter."""
    monkeypatch.setattr(pieces, "FEWEST_BYTES", 1)
    (tmp_path / "corpus").mkdir()
    for name in ("a", "b"):
        shutil.copy(config.corpus, tmp_path / "corpus" / f"{name}.txt")
    with pytest.raises(UserError) as caught:
        corpus = str(tmp_path / "corpus")
        prepare(dataclasses.replace(config, corpus=corpus, filters={"own": rule}, workers=workers))
    named = rf"the filter data.filters.own \({OwnRule.kind}\) failed on document [ab].txt:1: {complaint}; correct"
    assert re.match(named, str(caught.value))
    assert not [path for path in (tmp_path / "stores").iterdir() if path.is_dir()]
