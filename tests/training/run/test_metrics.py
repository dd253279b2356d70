"""The metrics file: keys, totals, and resumed runs."""

import dataclasses

import pytest

from bertjax.training.run import metrics
from bertjax.training.run.metrics import MetricsLog, Totals
from bertjax.training.run.workdir import Workdir, read_jsonl
from bertjax.training.run.writer import LogWriter
from tests.waiting import Clock

STEP = {
    "mlm_loss": 5.0,
    "nsp_accuracy": 0.5,
    "learning_rate": 1e-3,
    "gradient_norm": 2.0,
    "update_norm": 0.1,
    "parameter_norm": 30.0,
    "skipped": 0.0,
    "tokens": 100.0,
    "token_pairs": 800.0,
    "predictions": 15.0,
    "examples": 8.0,
    "rows": 8.0,
}


@pytest.fixture
def workdir(tmp_path) -> Workdir:
    return Workdir.at(tmp_path)


@pytest.fixture
def writer():
    with LogWriter() as writer:
        yield writer


def test_keys_of_an_entry(workdir, writer):
    log = MetricsLog(workdir, Totals(), 0, writer)
    log.count(STEP, 1e9)
    log.count(STEP, 1e9)
    log.write(2, STEP, {"eval/heldout/mlm_loss": 6.0})
    log.close()
    [record] = read_jsonl(workdir.metrics)
    trained = "mlm_loss nsp_accuracy learning_rate gradient_norm update_norm parameter_norm skipped".split()
    totals = "tokens rows flops seconds data_wait_seconds".split()
    assert record.keys() == {"step", *(f"train/{name}" for name in trained), "eval/heldout/mlm_loss", *totals}
    assert (record["step"], record["train/mlm_loss"], record["eval/heldout/mlm_loss"]) == (2, 5.0, 6.0)
    assert (record["tokens"], record["rows"]) == (200.0, 16.0)
    assert record["flops"] == 2e9
    [events] = workdir.events.iterdir()
    assert events.stat().length > 200


def test_a_drawing_of_many_steps_has_few_lines(workdir, writer, monkeypatch):
    monkeypatch.setattr(metrics, "_MOST_DRAWN", 8)
    log = MetricsLog(workdir, Totals(), 0, writer)
    for step in range(1, 1003):
        log.write(step, STEP, {"eval/heldout/mlm_loss": 6.0} if step % 500 == 0 else None)
    log.close()
    steps = [line["step"] for line in log.lines_to_draw]
    assert 6 <= len(steps) <= 18 and {1, 500, 1000, 1002} <= set(steps) and steps == sorted(steps)
    resumed = MetricsLog(workdir, Totals(), 1002, writer)
    assert [line["step"] for line in resumed.lines_to_draw] == steps


def test_totals_continue_after_a_stop(workdir, writer, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(metrics, "time", clock)
    log = MetricsLog(workdir, Totals(tokens=1000.0, seconds=60.0, data_wait_seconds=2.0), 10, writer)
    log.count(STEP, 1e9)
    with log.spending("data_wait"):
        clock.now += 0.05
    clock.now += 1.0
    totals = dataclasses.asdict(log.totals)
    assert totals["tokens"] == 1100.0 and totals["data_wait_seconds"] == pytest.approx(2.05)
    assert totals["seconds"] == pytest.approx(61.05) == log.totals.seconds  # counted once
    log.close()
