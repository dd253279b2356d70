"""Tables of several tasks in the form in which papers print them."""

import dataclasses
import json
import statistics
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bertjax.errors import UserError
from bertjax.training.results.seeds import deviation


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tasks, in the order of their columns.

    Attributes:
      tasks: {name of the folder of its runs: (metric, how the paper heads the column)}.
      averaged: the tasks of the last column.
    """

    tasks: dict[str, tuple[str, str]]
    averaged: tuple[str, ...]


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
)
SUITES = {"glue": GLUE}


def scores_of(suite: Suite, folder: str | Path) -> dict[str, list[float]]:
    """{task: the score of each seed, as a share of 1} of the finished runs in `folder/TASK`.

    Raises:
      UserError: there is none.
    """
    scores = {}
    for task, (metric, _) in suite.tasks.items():
        root = Path(folder).expanduser() / task
        if (root / "seeds.json").exists():
            scores[task] = json.loads((root / "seeds.json").read_text())["metrics"][metric]["values"]
        elif (root / "summary.json").exists():
            scores[task] = [json.loads((root / "summary.json").read_text())["eval"][metric]]
    if not scores:
        names = ", ".join(suite.tasks)
        raise UserError(f"{folder} holds no finished run of a task; train with --workdir={folder}/TASK ({names})")
    return scores


def as_dict(suite: Suite, scores: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """{task or `average`: {`mean`, `deviation`, `seeds`}}, in hundredths; the average where every task is there."""
    found = {
        task: {
            "mean": 100 * statistics.fmean(values),
            "deviation": 100 * deviation(values),
            "seeds": len(values),
        }
        for task, values in scores.items()
    }
    if all(task in found for task in suite.averaged):
        found["average"] = {"mean": statistics.fmean(found[task]["mean"] for task in suite.averaged)}
    return found


def print_suite(suite: Suite, scores: dict[str, list[float]], console: Console | None = None) -> None:
    """Prints a line of the paper's table: means in hundredths, deviations over seeds below, a dash where no run is."""
    found = as_dict(suite, scores)
    table = Table(title="held out, in hundredths")
    for _, heading in suite.tasks.values():
        table.add_column(heading, justify="right")
    table.add_column("average", justify="right")
    means = [f"{found[task]['mean']:.1f}" if task in found else "-" for task in suite.tasks]
    spread = [f"± {found[task]['deviation']:.1f}" if task in found else "" for task in suite.tasks]
    table.add_row(*means, f"{found['average']['mean']:.1f}" if "average" in found else "-")
    table.add_row(*spread, "")
    if missing := [task for task in suite.averaged if task not in found]:
        table.caption = f"no average: no run of {', '.join(missing)}"
    (console or Console()).print(table)
