"""Runs that hold out one fold each: their configurations, and what their predictions say about the whole file.

Each record is predicted by the one run that was not trained on it. Such out-of-fold probabilities show which labels of
the file are probably wrong (`label_errors`), and how well a model of this recipe does on new texts (Stone, 1974,
Cross-Validatory Choice and Assessment of Statistical Predictions).
"""

import dataclasses
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

from etils import epath
from rich.console import Console

from bertjax.config.config import Config
from bertjax.data.labeled.base import SPLITS, WHERE, LabeledFormat, Record
from bertjax.data.labeled.source import LabeledSource
from bertjax.runtime import storage
from bertjax.runtime.command_line import command
from bertjax.runtime.errors import UserError
from bertjax.training.resolve import labeled_files, tokenizer_of
from bertjax.training.results import classes, report
from bertjax.training.run.record import read_record
from bertjax.training.run.tables import Table
from bertjax.training.run.workdir import ALL, Workdir, read_jsonl, write_json, write_jsonl

# File of the scores over folds, and the stem of files with the predictions of all folds.
SUMMARY, STEM = "folds.json", "out_of_fold"


def are_open(config: Config) -> bool:
    """Return whether the configuration asks for a run for each fold."""
    formats = [task.examples for task in config.tasks.values()]
    return any(isinstance(each, LabeledFormat) and each.folds and each.fold is None for each in formats)


def configs_of(config: Config) -> dict[str, Config]:
    """Return {folder: configuration} for each fold, and for a run on all records if a file is held out.

    Raises:
      UserError: the run has several tasks.
    """
    if len(config.tasks) > 1:
        raise UserError(
            f"examples.folds needs a run of one task, and this one has {', '.join(config.tasks)}; leave the others out"
        )
    count, heldout = config.task.examples.folds, config.task.examples.heldout
    configs = {f"fold={fold}": _with_examples(config, fold=fold) for fold in range(count)}
    # It is trained on every record of the training file, so only a held-out file can score it.
    if heldout and not isinstance(heldout, float):
        configs[ALL] = _with_examples(config, folds=0)
    return configs


def _with_examples(config: Config, **changes: Any) -> Config:
    task = dataclasses.replace(config.task, examples=dataclasses.replace(config.task.examples, **changes))
    return dataclasses.replace(config, tasks={config.task_name: task})


def write(root: epath.Path, config: Config, figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Write the out-of-fold predictions, and the reports on them, to the folder of finished folds.

    Args:
      root: the folder of the folds.
      config: the configuration of the command.
      figures: content of each run's `summary.json`, the folds first.

    Returns:
      The content of `folds.json`: `metric`, the one that compares runs, `metrics` {name: {`values`, `mean`, `low`,
      `high`}} over the folds, `baseline` {name: mean}, `records`, the number of predictions, and `suspects`, how many
      labels are probably wrong; None if they are not classes.

    Raises:
      UserError: the training file is not the one that the folds were trained on.
    """
    count, files = config.task.examples.folds, Workdir(root)
    task = read_record(Workdir(root / "fold=0"), trust_code=True).config.task
    predictions = _predictions(root, config)
    write_jsonl(files.predictions / f"{STEM}.jsonl", predictions)
    suspects = None
    if by_class := classes.report_of(task, predictions):
        classes.write_report(files.predictions, STEM, by_class)
        if classes.has_probabilities(task, predictions):
            suspects = classes.write_suspects(files.predictions, STEM, task, predictions)
    folds = figures[:count]
    spread = {
        "metric": task.objective.best_metric,
        "metrics": _spread([each["eval"] for each in folds]),
        "baseline": {name: each["mean"] for name, each in _spread([each["baseline"] for each in folds]).items()},
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


def _predictions(root: epath.Path, config: Config) -> list[Record]:
    """Return the record of each line of the training file with its prediction, `line` and `fold`, in file order."""
    found = []
    source = cast(LabeledSource, labeled_files(config, tokenizer_of(config)))
    for fold, records in enumerate(source.by_fold):
        predicted: dict[str, list[Record]] = defaultdict(list)
        for record in read_jsonl(Workdir(root / f"fold={fold}").predictions / "heldout.jsonl"):
            predicted[_key(record, records[0])].append(record)
        # A model's answers to equal texts are equal, so their order is of no importance.
        _check_same(records, [record for of_key in predicted.values() for record in of_key], root, config, fold)
        for record in records:
            line = int(record[WHERE].rpartition(":")[2])
            found.append((line, {"line": line} | predicted[_key(record, record)].pop() | {"fold": fold}))
    return [record for _, record in sorted(found, key=lambda pair: pair[0])]


def check_file(root: epath.Path, config: Config) -> None:
    """Raise UserError if the training file is not the one that a fold was started with: before the next one trains."""
    started = {
        fold: paths
        for fold in range(config.task.examples.folds)
        if all(
            map(storage.exists, paths := [Workdir(root / f"fold={fold}").split(config.task_name, s) for s in SPLITS])
        )
    }
    if not started:
        return
    by_fold = cast(LabeledSource, labeled_files(config, tokenizer_of(config))).by_fold
    for fold, (train, heldout) in started.items():
        others = [record for index, records in enumerate(by_fold) if index != fold for record in records]
        _check_same(others, read_jsonl(train), root, config, fold)
        _check_same(by_fold[fold], read_jsonl(heldout), root, config, fold)


def _check_same(
    records: Sequence[Record], recorded: Sequence[Record], root: epath.Path, config: Config, fold: int
) -> None:
    """Raise UserError if the records of one side of a fold are not those that its run has recorded."""
    if sorted(_key(record, record) for record in records) != sorted(_key(record, records[0]) for record in recorded):
        raise UserError(
            f"{config.task.examples.train} is not the file that {root}/fold={fold} was trained on; restore it, or use "
            "another --workdir for the new one"
        )


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
    print_scores(spread)
    lines = [
        f"runs      {root}/fold=*",
        f"answers   {root}/predictions/{STEM}.jsonl: {spread['records']:,} records, each by the run that held it out",
    ]
    if spread["suspects"] is not None:
        lines.append(f"labels    {spread['suspects']:,} are probably wrong: {root}/predictions/{STEM}-suspects.csv")
    models = [f"{root}/{folder}/export" for folder in configs_of(config)]
    has_all = models[-1].endswith(f"{ALL}/export")
    if has_all:
        lines.append(f"encoder   {models[-1]}, trained on all records")
    members = models[-1:] if has_all else [models[0], *(f"--with={model}" for model in models[1:])]
    commands = [command("report", str(root))]
    if not storage.is_remote(root):  # models are read from a disk
        commands.append(command("predict", *members, "--file=FILE"))
    metric = spread["metric"]
    if (majority := report.majority_of(metric, spread["baseline"])) and (
        spread["metrics"][metric]["mean"] <= float(majority)
    ):
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


def print_scores(spread: dict[str, Any], console: Console | None = None) -> None:
    """Print the scores of `folds.json` as a table: mean, range, and the majority baseline."""
    table = Table(title=f"held out, {len(next(iter(spread['metrics'].values()))['values'])} folds")
    for column in ("", "mean", "lowest", "highest", "most frequent"):
        table.add_column(column, justify="right" if column else "left")
    for row in rows_of(spread):
        table.add_row(*row)
    (console or Console()).print(table)


def rows_of(spread: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return (metric, mean, lowest, highest, majority baseline) as text for each metric of `folds.json`."""
    return [
        (name, *(f"{each[part]:.4f}" for part in ("mean", "low", "high")), report.majority_of(name, spread["baseline"]))
        for name, each in spread["metrics"].items()
    ]
