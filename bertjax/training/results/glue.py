"""The result table of GLUE, laid out as in the paper of BERT."""

import statistics
from pathlib import Path
from typing import Any

from etils import epath
from rich.console import Console

from bertjax.runtime import storage
from bertjax.runtime.errors import UserError
from bertjax.training.results.seeds import deviation
from bertjax.training.run.tables import Table
from bertjax.training.run.workdir import Workdir, has_finished, read_json

# {task: a score per seed; None if it is not finite, such as the correlation of a model with one answer to everything}.
Scores = dict[str, list[float | None]]

# {folder name of a task's runs: (metric, column heading in the paper)}, in column order. Devlin et al. (2019), table 1:
# accuracies, F1 for QQP and MRPC, Spearman for STS-B, Matthews for CoLA; no WNLI.
GLUE = {
    "MNLI": ("accuracy", "MNLI-m"),
    "MNLI-mm": ("accuracy", "MNLI-mm"),
    "QQP": ("f1", "QQP"),
    "QNLI": ("accuracy", "QNLI"),
    "SST-2": ("accuracy", "SST-2"),
    "CoLA": ("matthews", "CoLA"),
    "STS-B": ("spearman", "STS-B"),
    "MRPC": ("f1", "MRPC"),
    "RTE": ("accuracy", "RTE"),
}
# {task without its own runs: (folder of the runs that score it, metric)}.
_SHARED = {"MNLI-mm": ("MNLI", "mismatched/accuracy")}


def scores_of(folder: str | Path) -> Scores:
    """Return {task: scores in [0, 1], one per seed} from the finished runs in `folder/TASK`.

    A shared task is read from the runs that score it, unless it has its own folder.

    Raises:
      UserError: there are no finished runs, or a file of a run is damaged.
    """
    scores = {}
    for task, (metric, _) in GLUE.items():
        root = Path(folder).expanduser()
        values = _scores_in(root / task, metric)
        if not values and task in _SHARED:
            scoring, metric = _SHARED[task]
            values = _scores_in(root / scoring, metric)
        if values:
            scores[task] = values
    if not scores:
        names = ", ".join(GLUE)
        raise UserError(f"{folder} holds no finished run of a task; train with --workdir={folder}/TASK ({names})")
    return scores


def _scores_in(root: Path, metric: str) -> list[float | None]:
    """Return one score per seed; empty if the runs are not finished or lack the metric."""
    # Several seeds have one seeds.json; a single run has its own summary.json.
    of_seeds, files = epath.Path(root / "seeds.json"), Workdir.at(root)
    if storage.exists(of_seeds):
        values = read_json(of_seeds, "metrics")["metrics"].get(metric, {"values": []})["values"]
        runs = [Workdir.at(root / f"seed={seed}") for seed in range(len(values))]
        # An unfinished seed would make the mean change later, so none of the seeds counts until all have ended.
        return values if all(map(_has_ended, runs)) else []
    if storage.exists(files.summary) and _has_ended(files):
        summary = read_json(files.summary, "eval", "finished")
        return [summary["eval"][metric]] if summary["finished"] and metric in summary["eval"] else []
    return []


def _has_ended(files: Workdir) -> bool:
    # A run that is being extended (--longer) has the results of its earlier end. Results that were copied without the
    # rest of their workdir are those of an end.
    return has_finished(files) or not storage.exists(files.config)


def as_dict(scores: Scores) -> dict[str, dict[str, Any]]:
    """Return {task: {`mean`, `deviation`, `seeds`}} in percent, with an `average` if no task is missing.

    `seeds` is the number of finite scores. Tasks without any are left out.
    """
    table = {}
    for task, values in scores.items():
        if finite := _finite(values):
            percent = [100 * value for value in finite]
            table[task] = {"mean": statistics.fmean(percent), "deviation": deviation(percent), "seeds": len(finite)}
    # An average over fewer tasks is not comparable with the paper's.
    if all(task in table for task in GLUE):
        table["average"] = {"mean": statistics.fmean(table[task]["mean"] for task in GLUE)}
    return table


def _finite(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def print_glue(scores: Scores, console: Console | None = None) -> None:
    """Print a row of the paper's table: means in percent, deviations over seeds below, dashes for missing tasks."""
    rows = as_dict(scores)
    table = Table(title="held out, in percent")
    for _, heading in GLUE.values():
        table.add_column(heading, justify="right")
    table.add_column("average", justify="right")
    means = [f"{rows[task]['mean']:.1f}" if task in rows else "-" for task in GLUE]
    spreads = [rows[task]["deviation"] if task in rows else None for task in GLUE]
    spread = ["" if value is None else f"± {value:.1f}" for value in spreads]
    table.add_row(*means, f"{rows['average']['mean']:.1f}" if "average" in rows else "-")
    table.add_row(*spread, "")
    notes = [
        f"{task}: {len(_finite(values))} of {len(values)} scores are finite"
        for task, values in scores.items()
        if None in values
    ]
    if missing := [task for task in GLUE if task not in rows]:
        notes.append(f"no average: no score of {', '.join(missing)}")
    table.caption = "\n".join(notes)
    (console or Console()).print(table)
