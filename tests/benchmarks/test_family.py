"""The benchmark of the BERT family: its rows, the order of its runs, and its tables."""

import json
from pathlib import Path

import pytest

from benchmarks.family import Run, finished, markdown, runs
from benchmarks.family_config import ROWS
from bertjax.config_file import load

CONFIG = Path(__file__).parents[2] / "benchmarks" / "family_config.py"


def line(run: Run, pairs: float, probe: float, loss: float = 4.0) -> dict:
    figures = {"steps": 10, "seconds": 2.0, "tokens": 1000.0, "eval": {"mlm_loss": loss, "mlm_accuracy": 0.2}}
    return run._asdict() | figures | {"pairs": pairs, "probe": probe}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_trains_for_the_given_steps(row):
    config = load(f"{CONFIG}:{row},31")
    assert sum(stage.steps for stage in config.stages) == 31
    assert {(stage.seq_len, stage.batch) for stage in config.stages} == {(16, 48)}
    assert config.model.layers == 2 and config.data == load(f"{CONFIG}:mlm,31").data


def test_runs_come_after_their_inputs():
    order = runs(seeds=3)
    assert len(order) == len(set(order)) == 2 * (len(ROWS) + 1) - 1 + 2 + 2
    for run in order:
        before = order[: order.index(run)]
        if run.row == "distilbert":
            assert Run("mlm", "steps", 0) in before
        if run.equal == "time":
            assert {Run("mlm", "steps", run.seed), Run(run.row, "steps", run.seed)} <= set(before)


def test_the_table_has_means_ranges_and_differences_from_bert(tmp_path):
    lines = [
        line(Run("bert", "steps", 0), 0.70, 0.30),
        line(Run("mlm", "steps", 0), 0.70, 0.20, loss=4.0),
        line(Run("mlm", "steps", 1), 0.80, 0.30, loss=4.5),
        line(Run("electra", "time", 0), 0.60, 0.40),
    ]
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"row": "cut off')
    text = markdown(finished(path))
    rows = {cells[1].strip(): cells for cells in (row.split("|") for row in text.splitlines()) if len(cells) > 2}
    mlm = [cell.strip() for cell in rows["`mlm` (2 seeds)"][2:-1]]
    assert mlm[:-1] == [
        "10",
        "500",
        "75.0 (70.0 to 80.0)",
        "25.0 (20.0 to 30.0)",
    ]
    assert rows["`mlm`"][2].strip() == "mlm 4.25"
    by_steps = text.split("equal time")[0]
    assert "pairs +5.0, probe -5.0" in by_steps and "`electra`" not in by_steps
