"""The table of `benchmarks.compression`, from its lines."""

import statistics

from benchmarks.compression_rows import ROWS
from benchmarks.compression_tasks import TASKS
from benchmarks.resumable import Line


def markdown(lines: list[Line]) -> str:
    """Return a table of scores for each task, a line for each row and run; rows without lines are absent."""
    latest = {(line["task"], line["row"], line["run"], line["seed"]): line for line in lines}
    tasks: dict[str, dict[tuple[str, int], list[Line]]] = {}
    for (task, row, run, _), line in sorted(latest.items()):
        tasks.setdefault(task, {}).setdefault((row, run), []).append(line)
    return "\n".join(_scores(task, rows) for task, rows in tasks.items())


def _scores(task: str, rows: dict[tuple[str, int], list[Line]]) -> str:
    """Return the table of a task. A student is compared with the teacher and the baseline of its own run."""
    majority = next(iter(rows.values()))[0]["baseline"].get("majority_accuracy")
    name = task if majority is None else f"{task} (majority {100 * majority:.1f})"
    metric = TASKS[task].metric
    scores = {key: [line["eval"][metric] for line in lines] for key, lines in rows.items()}
    # Every student of a run has its teacher of seed 0.
    teachers = {
        run: line["eval"][metric]
        for (row, run), lines in rows.items()
        for line in lines
        if (row, line["seed"]) == ("teacher", 0)
    }
    cells = []
    for row, run in sorted(scores, key=lambda key: (list(ROWS).index(key[0]), key[1])):
        own, without = scores[row, run], scores.get((ROWS[row].without, run))
        share = f"{statistics.fmean(own) / teachers[run]:.1%}" if run in teachers else ""
        cells.append([f"`{row}`", ROWS[row].source, str(run), spread(own), share, spread(without) if without else ""])
    return of_rows([name, "source", "run", metric, "of the teacher", "without the method"], cells)


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
