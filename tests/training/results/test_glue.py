"""GLUE's table from the runs of its tasks."""

import io
import json
import math

import pytest
from rich.console import Console

from bertjax.config.config import from_dict
from bertjax.runtime.errors import UserError
from bertjax.training.results.glue import GLUE, as_dict, print_suite, scores_of
from bertjax.training.results.seeds import over_seeds
from bertjax.training.run.record import RunRecord, write_record
from bertjax.training.run.workdir import Workdir, write_json


def write(folder, task: str, metric: str, values: list[float]) -> None:
    (folder / task).mkdir()
    if len(values) > 1:
        content, name = {"metrics": {metric: {"values": values}}}, "seeds.json"
    else:
        content, name = {"finished": True, "eval": {metric: values[0]}}, "summary.json"
    (folder / task / name).write_text(json.dumps(content))


def test_scores_that_are_not_finite_are_left_out_and_counted(tmp_path):
    """Such as Spearman's correlation of a model that gives all pairs one score."""
    figures = [{"eval": {"matthews": value}, "baseline": {}} for value in (0.5, math.nan, 0.3)]
    (tmp_path / "CoLA").mkdir()
    write_json(Workdir.at(tmp_path / "CoLA").root / "seeds.json", over_seeds(figures))
    (tmp_path / "STS-B").mkdir()
    write_json(Workdir.at(tmp_path / "STS-B").summary, {"finished": True, "eval": {"spearman": math.nan}})
    scores = scores_of(GLUE, tmp_path)
    assert scores == {"CoLA": [0.5, None, 0.3], "STS-B": [None]}
    [(task, row)] = as_dict(GLUE, scores).items()
    assert (task, row["mean"], row["seeds"]) == ("CoLA", pytest.approx(40.0), 2)
    output = io.StringIO()
    print_suite(GLUE, scores, Console(file=output, width=140))
    assert "CoLA: 2 of 3 scores are finite" in output.getvalue()
    assert "STS-B: 0 of 1 scores are finite" in output.getvalue()


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_run_that_is_being_extended_has_no_score(tmp_path, store, seeds):
    """Its results are those of its earlier end."""
    root = tmp_path / "CoLA"
    runs = [Workdir.at(root / f"seed={seed}" if seeds > 1 else root) for seed in range(seeds)]
    figures = {"steps": 10, "eval": {"matthews": 0.5}, "baseline": {}}

    def extend(steps: int) -> None:
        config = from_dict({"optimizer": {"warmup_steps": 1}, "stages": [{"steps": steps}]})
        write_record(runs[-1], RunRecord(config, config, {}, store.tokenizer.vocab_size), store.tokenizer)

    for run in runs:
        run.root.mkdir(parents=True)
        write_json(run.summary, {"finished": True, **figures})
    if seeds > 1:
        write_json(Workdir.at(root).root / "seeds.json", over_seeds([figures] * seeds))
    extend(steps=10)
    assert scores_of(GLUE, tmp_path) == {"CoLA": [0.5] * seeds}
    extend(steps=20)
    with pytest.raises(UserError, match="holds no finished run of a task"):
        scores_of(GLUE, tmp_path)


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
