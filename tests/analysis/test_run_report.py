"""Pages of a run and of a store."""

import dataclasses
import json
import types

import pytest

from bertjax.analysis import run_report
from bertjax.analysis.page import Section, Table
from bertjax.analysis.store_report import sections_of
from bertjax.cli import report
from bertjax.data.preparation.cleaning import read_dropped
from bertjax.data.preparation.prepare import prepare
from bertjax.data.store import TokenStore
from bertjax.runtime import command_line
from tests.comparison.workdirs import STEPS, record, write
from tests.data.preparation.test_parts import CLEANING, mixed

START = {
    "time": "2026-11-22T20:38:22+0000",
    "command": "python -m bertjax.train --config=configs/tiny.py --config.seed=1 --config.eval.rows=64",
    "devices": ["TPU v4", "TPU v4"],
    "processes": 1,
    "python": "3.11.7",
    "versions": {"bertjax": "abc", "jax": "0.10.2"},
}
SAMPLES = [
    {
        "step": step,
        "samples": [{"text": "[CLS] the [MASK] [SEP]", "answers": ["왕"], "guesses": [[guess, "a", "b", "c", "d"]]}],
    }
    for step, guess in ((10, "the"), (STEPS, "왕"))
]


def write_run(root, records=None, samples=SAMPLES, starts=(START,), **options):
    records = records or [record(10, 6.0, 5.5), record(STEPS, 4.0, 4.25)]
    write(root, records, options.pop("settings", {"seed": 3}), options.pop("baseline", {"unigram_loss": 6.5}))
    for name, lines in (("samples", samples), ("starts", starts)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


@pytest.fixture
def sections(tmp_path) -> dict[str, Section]:
    return {section.name: section for section in run_report.sections_of(str(write_run(tmp_path / "run")))}


def rows_of(section: Section, table: int = 0) -> dict[str, tuple[str, ...]]:
    tables = [block for block in section.blocks if isinstance(block, Table)]
    return {row[0]: row[1:] for row in tables[table].rows}


def test_throughput_is_that_of_the_records(sections):
    [throughput] = sections["speed"].blocks
    assert "the median: 50 tokens/s" in throughput.caption  # 100 tokens in 2 s


def test_settings_are_in_the_table_that_tells_whether_a_resumed_run_must_have_them(tmp_path):
    moved = {"corpus": "new.txt", "store": "stores", "workers": 2, "tokenizer": {"model": "my/bert"}}
    settings = {
        "data": moved | {"heldout_share": 0.3},
        "init_from": "my/bert",
        "eval": {"rows": 7},
        "runtime": {"log_every": 3, "skip_rows": [[0, 8]]},
        "stages": [{"steps": STEPS, "seq_len": 32, "batch": 8}],
    }
    root = write_run(tmp_path / "run", settings=settings)
    section = {section.name: section for section in run_report.sections_of(str(root))}["settings"]
    compared, free = (rows_of(section, table).keys() for table in (0, 1))
    assert {"data.heldout_share", "runtime.skip_rows", "stages.0.batch", "model.layers"} <= compared
    names = {f"data.{name}" for name in ("corpus", "store", "workers", "tokenizer.model")}
    assert names | {"init_from", "eval.rows", "runtime.log_every"} == free


def subject(folder, is_export: bool = False):
    return types.SimpleNamespace(saved=types.SimpleNamespace(folder=folder, is_export=is_export))


def test_a_run_without_metrics_is_analyzed_all_the_same(tmp_path):
    [section] = run_report.sections_before([subject(write(tmp_path / "new", []))])
    assert section.name == "run" and "no line in metrics.jsonl" in section.skipped


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


def test_what_was_left_out_is_counted_by_source_and_by_reason(cleaned):
    counts, reasons, *_ = tables(cleaned, "left-out")
    lines = list(read_dropped(cleaned.path))
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
