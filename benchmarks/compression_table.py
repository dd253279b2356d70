"""The table of `benchmarks.compression`, from its lines."""

import statistics

from benchmarks.compression_rows import ROWS
from benchmarks.compression_tasks import TASKS
from benchmarks.resumable import Line


def markdown(lines: list[Line]) -> str:
    """Return a table of scores for each task; rows without lines are absent."""
    latest = {(line["task"], line["row"], line["seed"]): line for line in lines}
    tasks: dict[str, dict[str, list[Line]]] = {}
    for (task, row, _), line in sorted(latest.items()):
        tasks.setdefault(task, {}).setdefault(row, []).append(line)
    return "\n".join(_scores(task, rows) for task, rows in tasks.items())


def _scores(task: str, rows: dict[str, list[Line]]) -> str:
    majority = next(iter(rows.values()))[0]["baseline"].get("majority_accuracy")
    name = task if majority is None else f"{task} (majority {100 * majority:.1f})"
    scores = {row: [line["eval"][TASKS[task].metric] for line in lines] for row, lines in rows.items()}
    # Every student has the teacher of seed 0.
    [whole] = [line["eval"][TASKS[task].metric] for line in rows.get("teacher", []) if line["seed"] == 0] or [None]
    table = {}
    for row in filter(scores.get, ROWS):
        share = f"{statistics.fmean(scores[row]) / whole:.1%}" if whole else ""
        without = scores.get(ROWS[row].without)
        table[row] = [ROWS[row].source, spread(scores[row]), share, spread(without) if without else ""]
    return of_rows([name, "source", TASKS[task].metric, "of the teacher", "without the method"], table)


def of_rows(columns: list[str], cells: dict[str, list[str]]) -> str:
    """Return a table whose first column has the names of rows."""
    text = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    text += [f"| {' | '.join([f'`{row}`', *rest])} |" for row, rest in cells.items()]
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
