"""The sections of a run: what its files say is on the page, and what is missing is said to be."""

import json
import types

import numpy as np
import pytest

from bertjax.analysis import run_data, run_report
from bertjax.analysis.page.page import Section, Table, TokenRow, page
from bertjax.config.config import Config, Task, from_dict
from bertjax.data.formats.segments import SegmentPairs
from bertjax.runtime.errors import UserError
from bertjax.training.feeds import Feeds
from bertjax.training.results import curves
from bertjax.training.run.record import RunRecord
from bertjax.training.run.workdir import Workdir
from tests.comparison.workdirs import STEPS, record, write

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


def test_the_last_evaluation_stands_beside_the_baselines(sections):
    assert "at step 20 of 20" in sections["run"].paragraphs[0]
    rows = rows_of(sections["run"])
    assert rows["mlm_loss"] == ("4.2500",) and rows["baseline: unigram_loss"] == ("6.5000",)


def test_curves_over_the_reference_of_the_configuration(sections):
    first = sections["curves"].blocks[0]
    seeds = curves.reference_of("tiny")["seeds"]
    assert f"reference, {seeds} seeds" in first.svg and f"{seeds} seeds of tiny" in first.caption
    assert "5.5000 at step 10, 4.2500 at step 20" in first.alternative


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


def test_the_same_sentences_over_time(sections):
    [table] = sections["guesses"].blocks
    assert table.caption == "[CLS] the [MASK] [SEP]" and table.headings == ("token", "step 10", "step 20")
    assert table.rows == (("왕", "the · a · b", "왕 · a · b"),) and table.marked == {(0, 2)}


def test_a_long_run_shows_some_evaluations_with_both_ends(tmp_path):
    samples = [SAMPLES[0] | {"step": step} for step in range(1, 101)]
    section = run_report._guesses(samples)
    headings = section.blocks[0].headings
    assert headings[1] == "step 1" and headings[-1] == "step 100" and len(headings) == 8


def test_throughput_is_that_of_the_records(sections):
    [throughput] = sections["speed"].blocks
    assert "the median: 50 tokens/s" in throughput.caption  # 100 tokens in 2 s


def test_accounts_add_up_to_the_wall_time(tmp_path):
    root = write_run(tmp_path / "run")
    summary = json.loads((root / "summary.json").read_text())
    accounts = {"step": 60.0, "compile": 20.0, "data_wait": 1.0, "evaluation": 5.0, "checkpoint": 4.0, "wall": 100.0}
    (root / "summary.json").write_text(json.dumps(summary | {"accounts": accounts | {"goodput": 0.6}}))
    speed = {section.name: section for section in run_report.sections_of(str(root))}["speed"]
    rows = rows_of(speed)
    assert rows["steps"] == ("60.0", "60.0%") and rows["start-up, and steps that were lost"] == ("10.0", "10.0%")
    assert sum(float(row[0]) for name, row in rows.items() if name != "wall time") == 100.0


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


def test_settings_that_differ_and_the_environment(sections):
    assert rows_of(sections["settings"])["seed"] == ("3", "0")
    rows = rows_of(sections["environment"])
    assert rows["devices"] == ("2 x TPU v4; processes: 1",) and rows["jax"] == ("0.10.2",)
    assert rows["command"] == (START["command"],)


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
