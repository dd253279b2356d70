"""The page of a token store: its numbers are those of the store."""

import collections
import dataclasses

import numpy as np
import pytest

from bertjax.analysis.store_report import sections_of
from bertjax.cli import report
from bertjax.data.filters.scripts import kind_of
from bertjax.data.inspect.cleaning import empty_sources
from bertjax.data.preparation import dropped
from bertjax.data.preparation.prepare import prepare
from bertjax.data.store import COUNTS, TokenStore
from bertjax.runtime import command_line
from tests.data.preparation.test_parts import CLEANING, mixed


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory, store) -> TokenStore:
    """Two sources with duplicates, bad documents, and some that filters drop."""
    folder = tmp_path_factory.mktemp("cleaned")
    config = mixed(folder, **CLEANING)
    tokenizer = dataclasses.replace(config.tokenizer, model=str(store.path / "tokenizer"))
    return prepare(dataclasses.replace(config, tokenizer=tokenizer))


def tables(store, name):
    [section] = [section for section in sections_of(store) if section.name == name]
    return [
        [dict(zip(table.headings, row, strict=True)) for row in table.rows]
        for table in section.blocks
        if hasattr(table, "rows")
    ]


def test_contents_are_those_of_the_manifest(cleaned):
    rows = {row["split"]: row for row in tables(cleaned, "contents")[0]}
    assert list(rows) == ["train", "train: books", "train: web", "heldout", "heldout: books", "heldout: web"]
    for split in ("train", "heldout"):
        assert rows[split]["tokens"] == f"{len(cleaned.split(split).tokens):,}"
        documents = [int(rows[f"{split}: {source}"]["documents"]) for source in ("books", "web")]
        assert sum(documents) == len(cleaned.split(split).documents) - 1


def test_scripts_are_those_of_the_letters_of_the_text(store):
    split, letters = store.split("train"), collections.Counter()
    for start, stop in zip(split.sentences, split.sentences[1:]):
        letters.update(map(kind_of, store.tokenizer.decode(np.asarray(split.tokens[start:stop]).tolist())))
    [[row]] = tables(store, "scripts")
    assert set(row) == {"source", "latin"} and row["latin"] == "100.00%" and letters["latin"]


def test_what_was_left_out_is_counted_by_source_and_by_reason(cleaned):
    counts, reasons, *_ = tables(cleaned, "left-out")
    lines = list(dropped.read(cleaned.path))
    for row in counts:
        of_source = [line for line in lines if line["source"] == row["source"]]
        assert row["duplicates"] == str(sum(line["rule"] == "duplicate" for line in of_source))
        assert row["near-duplicates"] == str(sum(line["rule"] == "near-duplicate" for line in of_source))
        assert row["dropped by length"] == str(sum(line["rule"] == "length" for line in of_source))
    [reason] = reasons
    assert reason["filter"] == "length" and reason["documents"] == str(sum(line["rule"] == "length" for line in lines))
    assert "Too short." in reason["examples"]
    assert sum(int(row["skipped"]) for row in counts) == sum(cleaned.manifest["skipped"].values()) > 0


def test_the_page_is_beside_the_store_whose_files_stay_the_same(cleaned, capsys):
    before = {path: path.stat().st_mtime_ns for path in cleaned.path.rglob("*")}
    assert command_line.exit_code_of(lambda: report.main([str(cleaned.path)])) == 0
    target = cleaned.path.with_name(f"{cleaned.path.name}.html")
    assert f"page      {target}\n" == capsys.readouterr().out
    html = target.read_text(encoding="utf-8")
    for title in ("Contents", "Text", "Lengths", "Scripts", "Pieces", "What was left out"):
        assert f">{title}</h2>" in html
    assert "http" not in html.replace('http-equiv="', "") and html.count("<svg ") == 2
    assert {path: path.stat().st_mtime_ns for path in cleaned.path.rglob("*")} == before


def test_a_source_without_documents_is_a_warning():
    assert empty_sources({"counts": {"train": {"web": dict.fromkeys(COUNTS, 0)}}}) == [
        "warning: no training document of web is left; --show-dropped=5 prints why, for each filter"
    ]


@pytest.mark.parametrize("name, message", [("", "is a folder of token stores; name one of them"), ("x", "is damaged")])
def test_bad_input_is_one_line(name, message, cleaned, tmp_path, capsys):
    folder = cleaned.path.parent
    if name:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "manifest.json").write_text("{")
    assert command_line.exit_code_of(lambda: report.main([str(folder), f"--out={tmp_path}/page.html"])) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "page.html").exists()
