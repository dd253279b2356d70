"""The table of `benchmarks.compression`, from its lines."""

import csv
import dataclasses
import io
import statistics
from collections.abc import Sequence

from benchmarks.compression_rows import ROWS
from benchmarks.compression_tasks import TASKS
from benchmarks.resumable import Line

_COLUMNS = ("task", "row", "source", "run", "metric", "seeds", "mean", "lowest", "highest", "of teacher", "without")


@dataclasses.dataclass(frozen=True)
class Row:
    """The scores of one row of a task in one run.

    Attributes:
      name: key in `ROWS`.
      scores: one for each seed.
      of_teacher: mean score as a share of the teacher's in the same run; None without a teacher.
      without: scores of the same student without the method, in the same run; empty if it has none.
    """

    task: str
    name: str
    run: int
    scores: list[float]
    of_teacher: float | None
    without: list[float]

    @property
    def source(self) -> str:
        """Return the paper of the method, or what the row is."""
        return ROWS[self.name].source

    @property
    def metric(self) -> str:
        return TASKS[self.task].metric


def rows_of(lines: Sequence[Line]) -> list[Row]:
    """Return the rows of all tasks, in the order of `ROWS`. Rows without lines are absent."""
    latest = {(line["task"], line["row"], line["run"], line["seed"]): line for line in lines}
    scores: dict[tuple[str, str, int], list[float]] = {}
    teachers: dict[tuple[str, int], float] = {}
    for (task, row, run, seed), line in sorted(latest.items()):
        score = line["eval"][TASKS[task].metric]
        scores.setdefault((task, row, run), []).append(score)
        if (row, seed) == ("teacher", 0):  # every student of a run has its teacher of seed 0
            teachers[task, run] = score
    order = list(ROWS)
    return [
        Row(
            task,
            name,
            run,
            own,
            statistics.fmean(own) / teachers[task, run] if (task, run) in teachers else None,
            scores.get((task, ROWS[name].without, run), []),
        )
        for (task, name, run), own in sorted(
            scores.items(), key=lambda item: (item[0][0], order.index(item[0][1]), item[0][2])
        )
    ]


def majorities(lines: Sequence[Line]) -> dict[str, float]:
    """Return {task: accuracy of the most frequent class}, for tasks that have one."""
    found = {line["task"]: line["baseline"].get("majority_accuracy") for line in lines}
    return {task: majority for task, majority in found.items() if majority is not None}


def markdown(lines: Sequence[Line]) -> str:
    """Return a table of scores for each task, a line for each row and run."""
    rows, majority = rows_of(lines), majorities(lines)
    tables = []
    for task in dict.fromkeys(row.task for row in rows):
        name = f"{task} (majority {100 * majority[task]:.1f})" if task in majority else task
        cells = [
            [
                f"`{row.name}`",
                row.source,
                str(row.run),
                spread(row.scores),
                "" if row.of_teacher is None else f"{row.of_teacher:.1%}",
                spread(row.without) if row.without else "",
            ]
            for row in rows
            if row.task == task
        ]
        columns = [name, "source", "run", TASKS[task].metric, "of the teacher", "without the method"]
        tables.append(of_rows(columns, cells))
    return "\n".join(tables)


def table(lines: Sequence[Line]) -> str:
    """Return all rows as CSV. Scores are in percent."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows_of(lines):
        values = [100 * score for score in row.scores]
        numbers = [f"{value:.1f}" for value in (statistics.fmean(values), min(values), max(values))]
        share = "" if row.of_teacher is None else f"{100 * row.of_teacher:.1f}"
        without = f"{100 * statistics.fmean(row.without):.1f}" if row.without else ""
        writer.writerow([row.task, row.name, row.source, row.run, row.metric, len(values), *numbers, share, without])
    return text.getvalue()


def of_rows(columns: list[str], cells: list[list[str]]) -> str:
    """Return a table in Markdown."""
    text = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    text += [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([*text, ""])


def spread(scores: list[float]) -> str:
    """Return the mean in percent, with the lowest and highest of several, and the number of seeds."""
    values = [100 * score for score in scores]
    mean = f"{statistics.fmean(values):.1f}"
    return f"{mean} (1)" if len(values) == 1 else f"{mean} [{min(values):.1f}, {max(values):.1f}] ({len(values)})"


def latency(pairs: list[tuple[float, float]]) -> str:
    """Return the median of latencies, and how many times as fast as the teacher in the same process.

    Args:
      pairs: milliseconds of a model and of the teacher, for each seed.
    """
    taken = statistics.median(own for own, _ in pairs)
    ratio = statistics.median(teacher / own for own, teacher in pairs)
    return f"{taken:.2f} ({ratio:.1f}x)"
