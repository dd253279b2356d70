"""Result tables over several fine-tuned tasks, laid out as in the papers."""

import dataclasses
import json
import statistics
from pathlib import Path

from rich.console import Console

from bertjax.errors import UserError
from bertjax.training.results.seeds import deviation
from bertjax.training.run.tables import Table


@dataclasses.dataclass(frozen=True)
class Suite:
    """A benchmark: tasks in column order.

    Attributes:
      tasks: {folder name of a task's runs: (metric, column heading in the paper)}.
      averaged: tasks in the `average` column.
      shared: {task without its own runs: (folder of the runs that score it, metric)}.
    """

    tasks: dict[str, tuple[str, str]]
    averaged: tuple[str, ...]
    shared: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)


# Devlin et al. (2019), table 1: accuracies, F1 for QQP and MRPC, Spearman for STS-B, Matthews for CoLA; no WNLI.
GLUE = Suite(
    tasks={
        "MNLI": ("accuracy", "MNLI-m"),
        "MNLI-mm": ("accuracy", "MNLI-mm"),
        "QQP": ("f1", "QQP"),
        "QNLI": ("accuracy", "QNLI"),
        "SST-2": ("accuracy", "SST-2"),
        "CoLA": ("matthews", "CoLA"),
        "STS-B": ("spearman", "STS-B"),
        "MRPC": ("f1", "MRPC"),
        "RTE": ("accuracy", "RTE"),
    },
    averaged=("MNLI", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE"),
    shared={"MNLI-mm": ("MNLI", "mismatched/accuracy")},
)
SUITES = {"glue": GLUE}


def scores_of(suite: Suite, folder: str | Path) -> dict[str, list[float]]:
    """Return {task: scores in [0, 1], one per seed} from the finished runs in `folder/TASK`.

    A shared task is read from the runs that score it, unless it has its own folder.

    Raises:
      UserError: there are no finished runs.
    """
    scores = {}
    for task, (metric, _) in suite.tasks.items():
        root = Path(folder).expanduser()
        values = _scores_in(root / task, metric)
        if not values and task in suite.shared:
            scoring, metric = suite.shared[task]
            values = _scores_in(root / scoring, metric)
        if values:
            scores[task] = values
    if not scores:
        names = ", ".join(suite.tasks)
        raise UserError(f"{folder} holds no finished run of a task; train with --workdir={folder}/TASK ({names})")
    return scores


def _scores_in(root: Path, metric: str) -> list[float]:
    """Return one score per seed; empty if the runs are not finished or lack the metric."""
    # Several seeds have one seeds.json; a single run has its own summary.json.
    if (root / "seeds.json").exists():
        return json.loads((root / "seeds.json").read_text())["metrics"].get(metric, {"values": []})["values"]
    if (root / "summary.json").exists():
        summary = json.loads((root / "summary.json").read_text())
        return [summary["eval"][metric]] if summary.get("finished", True) and metric in summary["eval"] else []
    return []


def as_dict(suite: Suite, scores: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return {task: {`mean`, `deviation`, `seeds`}} in percent, with an `average` if no task is missing."""
    table = {
        task: {
            "mean": 100 * statistics.fmean(values),
            "deviation": 100 * deviation(values),
            "seeds": len(values),
        }
        for task, values in scores.items()
    }
    if all(task in table for task in suite.averaged):
        table["average"] = {"mean": statistics.fmean(table[task]["mean"] for task in suite.averaged)}
    return table


def print_suite(suite: Suite, scores: dict[str, list[float]], console: Console | None = None) -> None:
    """Print a row of the paper's table: means in percent, deviations over seeds below, dashes for missing tasks."""
    rows = as_dict(suite, scores)
    table = Table(title="held out, in percent")
    for _, heading in suite.tasks.values():
        table.add_column(heading, justify="right")
    table.add_column("average", justify="right")
    means = [f"{rows[task]['mean']:.1f}" if task in rows else "-" for task in suite.tasks]
    spread = [f"± {rows[task]['deviation']:.1f}" if task in rows else "" for task in suite.tasks]
    table.add_row(*means, f"{rows['average']['mean']:.1f}" if "average" in rows else "-")
    table.add_row(*spread, "")
    if missing := [task for task in suite.averaged if task not in rows]:
        table.caption = f"no average: no run of {', '.join(missing)}"
    (console or Console()).print(table)
