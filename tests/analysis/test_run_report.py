"""Pages of a run and of a store."""

import dataclasses
import json
import types

import numpy as np
import pytest

from bertjax.analysis import class_sections, run_data, run_report
from bertjax.analysis.page import Section, Table, TokenRow, page
from bertjax.analysis.store_report import sections_of
from bertjax.cli import report
from bertjax.config.config import Config, Task, from_dict
from bertjax.data.formats.segments import SegmentPairs
from bertjax.data.preparation import dropped
from bertjax.data.preparation.prepare import prepare
from bertjax.data.store import TokenStore
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError
from bertjax.training.feeds import Feeds
from bertjax.training.run.record import RunRecord
from bertjax.training.run.workdir import Workdir
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


@pytest.mark.parametrize(
    "command, name",
    [
        ("python -m bertjax.train --config=configs/tiny.py --config.seed=1", "tiny"),
        ("python -m bertjax.train --config configs/tiny.py:chars --workdir=x", "tiny-chars"),
        ("python -m bertjax.train --config=configs/tiny.py --config.model.layers=3", ""),
        ("python train_with_the_api.py --config-file=x", ""),
    ],
)
def test_a_run_with_other_settings_has_no_reference(command, name):
    assert run_report._config_name([START, START | {"command": command}]) == name


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


def test_what_is_missing_is_stated(tmp_path):
    sections = run_report.sections_of(str(write_run(tmp_path / "run", samples=(), starts=())))
    by_name = {section.name: section for section in sections}
    assert "eval.samples" in by_name["guesses"].skipped
    assert "does not hold the token store of the run" in by_name["rows"].skipped
    assert "starts.jsonl" in by_name["environment"].skipped
    assert page("run", sections).count("<strong>Skipped:</strong>") == 3


def test_bad_input_is_one_line(tmp_path):
    write_run(tmp_path / "seeds" / "seed=0")
    write(tmp_path / "new", [])
    for name, message in (
        ("seeds", "such as .*seed=0"),
        ("missing", "does not exist"),
        ("new", "no line in metrics.jsonl yet"),
    ):
        with pytest.raises(UserError, match=message):
            run_report.sections_of(str(tmp_path / name))


def test_rows_are_those_of_the_batch(store):
    """With the originals in place of what the model reads, a row is the text of the store."""
    feeds = Feeds(Config(tasks={"bert": Task(examples=SegmentPairs(), row_examples=4)}), store)
    feed, tokenizer = feeds.feed("train", 48), store.tokenizer
    batch, rows = feed.batch(np.arange(3)), run_data.rows_of(feed, store.tokenizer, 3, "bert")
    for index, row in enumerate(rows):
        assert isinstance(row, TokenRow)
        real = batch["examples_BT"][index] > 0
        assert [token.text for token in row.tokens] == [
            tokenizer.piece(int(i)) for i in batch["tokens_BT"][index, real]
        ]
        assert [token.segment for token in row.tokens] == batch["segments_BT"][index, real].tolist()
        predicted = batch["mlm_weights_BK"][index] > 0
        labels = {
            int(at): tokenizer.piece(int(label))
            for at, label in zip(
                batch["mlm_positions_BK"][index, predicted], batch["mlm_labels_BK"][index, predicted], strict=True
            )
        }
        places = np.flatnonzero(real)
        assert {int(places[i]): token.original for i, token in enumerate(row.tokens) if token.original} == labels
        assert f"tokens to predict: {len(labels)}" in row.caption and "nsp=" in row.caption


def subject(folder, is_export: bool = False):
    return types.SimpleNamespace(saved=types.SimpleNamespace(folder=folder, is_export=is_export))


def test_an_analysis_of_one_run_starts_with_its_sections(tmp_path):
    one, other = (write_run(tmp_path / name) for name in ("one", "other"))
    names = [section.name for section in run_report.sections_before([subject(one), subject(one)])]
    assert names == ["run", "curves", "guesses", "rows", "speed", "settings", "environment"]
    for subjects in (
        [subject(one), subject(other)],
        [subject(one, is_export=True)],
        [types.SimpleNamespace(saved=None)],
    ):
        assert run_report.sections_before(subjects) == []


def test_a_run_without_metrics_is_analyzed_all_the_same(tmp_path):
    [section] = run_report.sections_before([subject(write(tmp_path / "new", []))])
    assert section.name == "run" and "no line in metrics.jsonl" in section.skipped


def test_rows_of_a_labeled_file(models, tokens, tmp_path):
    """The tokenizer is that of the workdir."""
    train = models["labeled"].with_name("train.tsv")
    task = {
        "objective": {"kind": "classification", "classes": ["bad", "good"]},
        "examples": {"kind": "labeled_text", "train": str(train), "heldout": str(models["labeled"])},
    }
    settings = {"model": {"max_positions": 64}, "tasks": {"toy": task}, "stages": [{"seq_len": 64, "steps": 5}]}
    config = from_dict(settings | {"optimizer": {"warmup_steps": 0}})
    (tmp_path / "tokenizer").mkdir()
    tokens.save(tmp_path / "tokenizer")
    section = run_data.section_of(Workdir.at(tmp_path), RunRecord(config, config, {}, tokens.vocab_size))
    assert not section.skipped and len(section.blocks) == 2
    texts = [line.split("\t")[0] for line in train.read_text(encoding="utf-8").splitlines()[1:]]
    pieces = [[tokens.piece(token) for token in ids] for ids in tokens.encode(texts)]
    shown = [token.text for token in section.blocks[0].tokens]
    first = shown[1 : shown.index("[SEP]")]
    assert first in pieces and "tokens to predict: 0" in section.blocks[0].caption


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


@pytest.mark.parametrize("name, message", [("", "is a folder of token stores; name one of them"), ("x", "is damaged")])
def test_bad_input_is_one_line_of_store_report(name, message, cleaned, tmp_path, capsys):
    folder = cleaned.path.parent
    if name:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "manifest.json").write_text("{")
    assert command_line.exit_code_of(lambda: report.main([str(folder), f"--out={tmp_path}/page.html"])) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_a_mistake_on_a_pair_shows_both_texts():
    records = [{"one": "He left.", "two": "He stayed.", "label": "same", "prediction": "other"}]
    table = class_sections.surest_mistakes(records, np.array([0.9]), np.array([False]), "label", ("one", "two"))
    assert table.rows == (("He left. | He stayed.", "same", "other", "0.900"),)
