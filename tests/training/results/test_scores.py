"""Scores: the best checkpoint, seeds, GLUE, and epochs of each source."""

import dataclasses
import io
import json
import math

import pytest
from rich.console import Console

from bertjax.config.config import Config, Task, from_dict
from bertjax.data.config import DataConfig, SourceConfig, TokenizerConfig
from bertjax.data.formats.runs import DocSentences, FullSentences
from bertjax.data.preparation.prepare import prepare
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import UserError
from bertjax.training.config import Stage
from bertjax.training.feeds import Feeds
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.results import source_epochs
from bertjax.training.results.glue import GLUE, as_dict, print_glue, scores_of
from bertjax.training.results.seeds import better_checkpoint, over_seeds, print_seeds
from bertjax.training.run.workdir import Workdir, write_json
from bertjax.training.stages import Timetable

TASK = {"objective": {"kind": "classification", "classes": ["no", "yes"]}, "examples": {"kind": "labeled_text"}}


def finished(folder, scores, kept) -> Workdir:
    """A run with evaluations {step: score} that has kept the checkpoints of some."""
    for step in kept:
        (folder / "checkpoints" / str(step)).mkdir(parents=True)
    records = [{"step": step, "score": -score, "rows": 4096, "seed": 0} for step, score in scores.items()]
    records.append({"step": kept[0] if kept else 10, "score": -9.0, "rows": 1, "seed": 0})  # on other rows
    (folder / "evaluations.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return Workdir.at(folder)


@pytest.mark.parametrize(
    "scores, kept, expected",
    [
        ({10: 0.77, 20: 0.75, 30: 0.72}, (10, 30), "@10 has accuracy 0.7700; the export is the last step, with 0.7200"),
        ({10: 0.80, 20: 0.75, 30: 0.72}, (20, 30), "@20 has accuracy 0.7500"),  # that of step 10 is gone
        ({10: 0.72, 30: 0.72}, (10, 30), ""),
        ({10: 0.70, 30: 0.72}, (30,), ""),
        ({}, (), ""),
    ],
)
def test_the_best_kept_checkpoint(tmp_path, scores, kept, expected):
    files, config = finished(tmp_path, scores, kept), from_dict({"tasks": {"mine": TASK}})
    line = better_checkpoint(files, config, {"accuracy": scores.get(30, 0.5)})
    assert line.startswith(f"{tmp_path}{expected}") if expected else line == ""


def figures(accuracy: float, majority: float = 0.6) -> dict:
    return {"eval": {"accuracy": accuracy, "f1": accuracy / 2}, "baseline": {"majority_accuracy": majority}}


def test_the_table():
    output = io.StringIO()
    print_seeds(over_seeds([figures(0.9), figures(0.5)]), Console(file=output, width=100))
    text = output.getvalue()
    assert "held out, 2 seeds" in text and "1 of 2 did not beat the most frequent class" in text
    assert "0.7000" in text and "0.3500" in text


def test_a_metric_that_some_seeds_lack_is_that_of_the_others():
    """A precision is missing if nothing is predicted, and a value that is not finite is null in `summary.json`."""
    runs = [{"accuracy": None}, {"accuracy": 0.9, "precision": 0.4}, {"accuracy": 0.7, "precision": None}]
    spread = over_seeds([{"eval": values, "baseline": {"majority_accuracy": 0.8}} for values in runs])
    assert spread["metrics"]["accuracy"]["values"] == [None, 0.9, 0.7] and spread["failed"] == 2
    assert spread["metrics"]["accuracy"]["mean"] == pytest.approx(0.8)
    precision = {"values": [None, 0.4, None], "mean": 0.4, "deviation": None, "median": 0.4, "best": 0.4}
    assert spread["metrics"]["precision"] == precision
    nothing = over_seeds([{"eval": {"f1": None}, "baseline": {}}])
    output = io.StringIO()
    for each in (spread, nothing):
        print_seeds(each, Console(file=output, width=100))
    assert "precision (1 of 3)" in output.getvalue() and "0.4000" in output.getvalue()


STAGES = (Stage(steps=30, seq_len=48, batch=4), Stage(steps=20, seq_len=64, batch=2))
TASKS = {"a": Task(MaskedLM(), DocSentences(), plans=2), "b": Task(MaskedLM(), FullSentences())}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for name, size in (("large", 400), ("small", 40)):
        (folder / f"{name}.txt").write_text("".join(f"{name} {i} is {name}. So {i} is it.\n\n" for i in range(size)))
    sources = {name: SourceConfig(str(folder / f"{name}.txt")) for name in ("large", "small")}
    tokenizer, stores = TokenizerConfig(vocab_size=300), str(folder / "stores")
    return DataConfig(sources=sources, tokenizer=tokenizer, store=stores, workers=0)


def of(data, tasks, stages=STAGES):
    optimizer = OptimizerConfig(warmup_steps=1)
    config = Config(data=data, tasks=tasks, stages=stages, optimizer=optimizer)
    weights = {name: task.weight for name, task in tasks.items()}
    return Feeds(config, prepare(data)), Timetable(stages, weights)


def test_a_source_that_is_read_often_is_warned_about(data):
    feeds, timetable = of(dataclasses.replace(data, smoothing=0.0), {"b": TASKS["b"]})
    first, warning = source_epochs.lines(feeds, timetable)
    epochs = source_epochs.epochs_by_source(feeds, timetable)
    assert epochs["large"] < 4 < epochs["small"]
    assert first == f"epochs of the sources: large {epochs['large']:.1f}, small {epochs['small']:.1f}"
    assert warning.startswith(f"warning: the run reads small {epochs['small']:.1f} times") and "\n" not in warning


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
    scores = scores_of(tmp_path)
    assert scores == {"CoLA": [0.5, None, 0.3], "STS-B": [None]}
    [(task, row)] = as_dict(scores).items()
    assert (task, row["mean"], row["seeds"]) == ("CoLA", pytest.approx(40.0), 2)
    output = io.StringIO()
    print_glue(scores, Console(file=output, width=140))
    assert "CoLA: 2 of 3 scores are finite" in output.getvalue()
    assert "STS-B: 0 of 1 scores are finite" in output.getvalue()


def test_the_average_is_over_all_columns(tmp_path):
    for index, (task, (metric, _)) in enumerate(GLUE.items()):
        write(tmp_path, task, metric, [index / 10])
    assert as_dict(scores_of(tmp_path))["average"]["mean"] == pytest.approx(40.0)


def test_an_empty_folder(tmp_path):
    with pytest.raises(UserError, match="holds no finished run of a task; train with --workdir="):
        scores_of(tmp_path)
