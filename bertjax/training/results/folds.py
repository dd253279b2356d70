"""Runs that hold out one fold each: their configurations, and what their predictions say about the whole file.

Each record is predicted by the one run that was not trained on it. Such out-of-fold probabilities show which labels of
the file are probably wrong (`label_errors`), and how well a model of this recipe does on new texts (Stone, 1974,
Cross-Validatory Choice and Assessment of Statistical Predictions).
"""

import dataclasses
import functools
import json
import os
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from etils import epath
from rich.console import Console

from bertjax.config.config import Config
from bertjax.data.labeled.base import SPLITS, WHERE, LabeledFormat, Record, line_of
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.labeled.split import folds
from bertjax.data.packing import mixed
from bertjax.runtime import storage
from bertjax.runtime.command_line import command
from bertjax.runtime.errors import UserError
from bertjax.training.feeds import Feeds
from bertjax.training.parallel import processes
from bertjax.training.resolve import labeled_feeds
from bertjax.training.results import classes, report
from bertjax.training.run.record import has_split, read_record, write_split
from bertjax.training.run.tables import Table
from bertjax.training.run.workdir import ALL, Workdir, read_jsonl, write_json, write_jsonl

# File of the scores over folds, and the stem of files with the predictions of all folds.
SUMMARY, STEM = "folds.json", "out_of_fold"


@dataclasses.dataclass(frozen=True)
class _MeanFold(Feeds):
    """Data of which the runs of all folds have the same number of steps and the same batches."""

    def epoch(self, task: str, seq_len: int) -> tuple[int, int]:
        spec, of_task, source = self._spec(task, "train", seq_len), self.config.tasks[task], self.store_of(task)
        lengths = cast(LabeledSource, source).examples("train", seq_len, of_task.objective.classes).lengths()
        # Sorted, because the number of rows depends on the order, and the order on the file.
        rows, share = len(mixed(np.sort(lengths), seq_len, spec.max_row_examples)), 1 - 1 / of_task.examples.folds
        return max(1, round(rows * share)), round(len(lengths) * share)


def are_open(config: Config) -> bool:
    """Return whether the configuration asks for a run for each fold."""
    return any(isinstance(task.examples, LabeledFormat) and task.examples.folds for task in config.tasks.values())


def divide(root: epath.Path, config: Config) -> tuple[list[list[Record]], dict[str, Config]]:
    """Divide the training file, and write the records of each run to the folder of its split, in every process.

    Each run has the classes, class weights and steps of the whole file, so that all are one program.

    Args:
      root: the folder of the folds; files of an earlier start are compared.
      config: the configuration of the command.

    Returns:
      The records of each fold, in file order, and {folder: configuration} of a run for each fold, and of one on all
      records if a file is held out.

    Raises:
      UserError: the run has several tasks, the file is not the one that a fold was started with, or it has fewer
        different texts than folds.
    """
    if len(config.tasks) > 1:
        raise UserError(
            f"examples.folds needs a run of one task, and this one has {', '.join(config.tasks)}; leave the others out"
        )
    # Without other held-out records: all of the file are divided.
    whole = _with_examples(config, heldout=config.task.examples.train)
    feeds = processes.together(labeled_feeds, whole, _MeanFold, purpose="file-of-folds")
    source, task, examples = cast(LabeledSource, feeds.store), feeds.config.task, config.task.examples
    parts = folds(source.labeled, source.format, task.has_classes)
    if not all(parts):
        raise UserError(
            f"examples.folds={examples.folds} of {examples.train} leaves a fold without records, as they have "
            f"{sum(map(bool, parts))} different texts; set fewer folds"
        )
    stages = tuple(dataclasses.replace(each, epochs=0.0, examples=0, min_steps=0) for each in feeds.config.stages)
    task = dataclasses.replace(task, weight=config.task.weight)
    alike = dataclasses.replace(config, stages=stages, eval=feeds.config.eval, tasks={config.task_name: task})
    configs = {}
    for fold, heldout in enumerate(parts):
        files, held = Workdir(root / f"fold={fold}"), set(map(id, heldout))
        divided = {"train": [record for record in source.labeled if id(record) not in held], "heldout": heldout}
        processes.on_writer(functools.partial(_write_split, files, config, divided))
        paths = {split: os.fspath(files.split(config.task_name, split)) for split in SPLITS}
        configs[files.root.name] = _with_examples(alike, limit=0, **paths)
    if has_all(config):
        configs[ALL] = _with_examples(config, folds=0)
    return parts, configs


def has_all(config: Config) -> bool:
    """Return whether a last run is trained on every record of the training file: if there is a file to score it."""
    return bool(config.task.examples.heldout) and not isinstance(config.task.examples.heldout, float)


def _write_split(files: Workdir, config: Config, divided: dict[str, list[Record]]) -> None:
    if not storage.exists(files.config):
        write_split(files, config.task_name, divided)
    elif not has_split(files, config.task_name, divided):
        raise UserError(
            f"{config.task.examples.train} is not the file that {files.root} was trained on; restore it, or use "
            "another --workdir for the new one"
        )


def _with_examples(config: Config, **changes: Any) -> Config:
    task = dataclasses.replace(config.task, examples=dataclasses.replace(config.task.examples, **changes))
    return dataclasses.replace(config, tasks={config.task_name: task})


def write(root: epath.Path, parts: Sequence[list[Record]], figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Write the out-of-fold predictions, and the reports on them, to the folder of finished folds.

    Args:
      root: the folder of the folds.
      parts: the records of each fold.
      figures: content of each run's `summary.json`, the folds first.

    Returns:
      The content of `folds.json`: `metric`, the one that compares runs, `metrics` {name: {`values`, `mean`, `low`,
      `high`}} over the folds, `baseline` {name: mean}, `records`, the number of predictions, and `suspects`, how many
      labels are probably wrong; None if they are not classes.
    """
    files = Workdir(root)
    task = read_record(Workdir(root / "fold=0"), trust_code=True).config.task
    predictions = _predictions(root, parts)
    write_jsonl(files.predictions / f"{STEM}.jsonl", predictions)
    suspects = None
    if by_class := classes.report_of(task, predictions):
        classes.write_report(files.predictions, STEM, by_class)
        if classes.has_probabilities(task, predictions):
            suspects = classes.write_suspects(files.predictions, STEM, task, predictions)
    of_folds = figures[: len(parts)]
    spread = {
        "metric": task.objective.best_metric,
        "metrics": _spread([each["eval"] for each in of_folds]),
        "baseline": {name: each["mean"] for name, each in _spread([each["baseline"] for each in of_folds]).items()},
        "records": len(predictions),
        "suspects": suspects,
    }
    write_json(root / SUMMARY, spread)
    return spread


def _spread(scores: Sequence[dict[str, float | None]]) -> dict[str, dict[str, Any]]:
    """Return {name: {`values`, `mean`, `low`, `high`}} of the metrics that all folds have."""
    names = [name for name in scores[0] if all(each.get(name) is not None for each in scores)]
    values = {name: [each[name] for each in scores] for name in names}
    return {
        name: {"values": own, "mean": statistics.fmean(own), "low": min(own), "high": max(own)}
        for name, own in values.items()
    }


def _predictions(root: epath.Path, parts: Sequence[list[Record]]) -> list[Record]:
    """Return the record of each line of the training file with its prediction, `line` and `fold`, in file order."""
    found = []
    for fold, records in enumerate(parts):
        predicted: dict[str, list[Record]] = defaultdict(list)
        for record in read_jsonl(Workdir(root / f"fold={fold}").predictions / "heldout.jsonl"):
            predicted[_key(record, records[0])].append(record)
        for record in records:
            line = line_of(record)
            # A model's answers to equal texts are equal, so their order is of no importance.
            found.append((line, {"line": line} | predicted[_key(record, record)].pop() | {"fold": fold}))
    return [record for _, record in sorted(found, key=lambda pair: pair[0])]


def _key(record: Record, like: Record) -> str:
    """Return the fields that a record has in the file, as text."""
    return json.dumps({name: record.get(name) for name in like if name != WHERE}, sort_keys=True)


def lines_of(root: epath.Path, config: Config, spread: dict[str, Any], train: Sequence[str]) -> list[str]:
    """Print the scores over the folds as a table, and return lines with the files and the next commands.

    Args:
      root: the folder of the folds.
      config: the configuration of the command.
      spread: result of `write`.
      train: arguments of the command that trained the folds.
    """
    title = f"held out, {len(next(iter(spread['metrics'].values()))['values'])} folds"
    table = Table("", "mean", "lowest", "highest", "most frequent", title=title, justify="right")
    for row in rows_of(spread):
        table.add_row(*row)
    Console().print(table)
    lines = [
        f"runs      {root}/fold=*",
        f"answers   {root}/predictions/{STEM}.jsonl: {spread['records']:,} records, each by the run that held it out",
    ]
    if spread["suspects"] is not None:
        lines.append(f"labels    {spread['suspects']:,} are probably wrong: {root}/predictions/{STEM}-suspects.csv")
    models = [f"{root}/fold={fold}/export" for fold in range(config.task.examples.folds)]
    members = [models[0], *(f"--with={model}" for model in models[1:])]
    if has_all(config):
        members = [f"{root}/{ALL}/export"]
        lines.append(f"encoder   {members[0]}, trained on all records")
    commands = [command("report", str(root))]
    if not storage.is_remote(root):  # models are read from a disk
        commands.append(command("predict", *members, "--file=FILE"))
    metric = spread["metric"]
    _, majority = report.baselines_of(metric, spread["baseline"])
    if majority and spread["metrics"][metric]["mean"] <= float(majority):
        lines.append(f"warning   {metric} is not above that of the most frequent class: what seems wrong says nothing")
    elif spread["suspects"]:
        examples = f"--config.tasks.{config.task_name}.examples"
        # The value of a flag may be the next argument.
        flags = [each for each, before in zip(train, ("", *train), strict=False) if before != "--workdir"]
        kept = [
            each for each in flags if not each.startswith((f"{examples}.folds=", f"{examples}.train=", "--workdir"))
        ]
        commands.append(command(*kept, f"{examples}.train=CORRECTED_FILE", "--workdir=OTHER_WORKDIR"))
    lines.append(f"figures   {root}/{SUMMARY}")
    return lines + [f"{'' if index else 'next':<10}{each}" for index, each in enumerate(commands)]


def rows_of(spread: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return (metric, mean, lowest, highest, majority baseline) as text for each metric of `folds.json`."""
    rows = []
    for name, each in spread["metrics"].items():
        _, majority = report.baselines_of(name, spread["baseline"])
        rows.append((name, *(f"{each[part]:.4f}" for part in ("mean", "low", "high")), majority))
    return rows
