"""GLUE's table from the runs of its tasks."""

import io
import json

import pytest
from rich.console import Console

from bertjax.errors import UserError
from bertjax.training.results.glue import GLUE, as_dict, print_suite, scores_of


def write(folder, task: str, metric: str, values: list[float]) -> None:
    (folder / task).mkdir()
    if len(values) > 1:
        content, name = {"metrics": {metric: {"values": values}}}, "seeds.json"
    else:
        content, name = {"eval": {metric: values[0]}}, "summary.json"
    (folder / task / name).write_text(json.dumps(content))


def test_a_table_of_some_tasks(tmp_path):
    write(tmp_path, "MRPC", "f1", [0.8, 0.9])
    write(tmp_path, "CoLA", "matthews", [0.5])
    scores = scores_of(GLUE, tmp_path)
    assert scores == {"CoLA": [0.5], "MRPC": [0.8, 0.9]}
    table = as_dict(GLUE, scores)
    assert table["MRPC"] == {"mean": pytest.approx(85.0), "deviation": pytest.approx(50**0.5), "seeds": 2}
    assert "average" not in table
    output = io.StringIO()
    print_suite(GLUE, scores, Console(file=output, width=140))
    assert "85.0" in output.getvalue() and "± 7.1" in output.getvalue()
    assert "no average: no run of MNLI, MNLI-mm, QQP, QNLI, SST-2, STS-B, RTE" in output.getvalue()


def test_a_run_that_is_not_finished_has_no_score(tmp_path):
    write(tmp_path, "MRPC", "f1", [0.8])
    write(tmp_path, "CoLA", "matthews", [0.5])
    summary = tmp_path / "CoLA" / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"finished": False}))
    assert scores_of(GLUE, tmp_path) == {"MRPC": [0.8]}


def test_the_average_is_over_all_columns(tmp_path):
    for index, (task, (metric, _)) in enumerate(GLUE.tasks.items()):
        write(tmp_path, task, metric, [index / 10])
    assert as_dict(GLUE, scores_of(GLUE, tmp_path))["average"]["mean"] == pytest.approx(40.0)


def test_the_model_of_mnli_scores_both_of_its_sets(tmp_path):
    (tmp_path / "MNLI").mkdir()
    metrics = {"accuracy": {"values": [0.84, 0.85]}, "mismatched/accuracy": {"values": [0.83, 0.82]}}
    (tmp_path / "MNLI" / "seeds.json").write_text(json.dumps({"metrics": metrics}))
    assert scores_of(GLUE, tmp_path) == {"MNLI": [0.84, 0.85], "MNLI-mm": [0.83, 0.82]}
    write(tmp_path, "MNLI-mm", "accuracy", [0.8])
    assert scores_of(GLUE, tmp_path)["MNLI-mm"] == [0.8], "a run of its own is preferred"


def test_an_empty_folder(tmp_path):
    with pytest.raises(UserError, match="holds no finished run of a task; train with --workdir="):
        scores_of(GLUE, tmp_path)
