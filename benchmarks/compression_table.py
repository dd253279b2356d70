"""The table of `benchmarks.compression`, from its lines."""

import statistics
from typing import Any

from benchmarks.compression_rows import ROWS
from benchmarks.compression_tasks import TASKS

Line = dict[str, Any]


def markdown(lines: list[Line]) -> str:
    """Return a table for each task, with the rows in the order of `ROWS`; rows without lines are absent."""
    latest = {(line["task"], line["row"], line["seed"]): line for line in lines}
    tasks: dict[str, dict[str, list[Line]]] = {}
    for (task, row, _), line in sorted(latest.items()):
        tasks.setdefault(task, {}).setdefault(row, []).append(line)
    text = []
    for task, rows in tasks.items():
        majority = next(iter(rows.values()))[0]["baseline"].get("majority_accuracy")
        name = task if majority is None else f"{task} (majority {100 * majority:.1f})"
        text += [
            f"| {name} | source | parameters | bytes | {TASKS[task].metric} | of the teacher | "
            "without the method | ms at batch 1 | at batch 32 |",
            "|---|---|---|---|---|---|---|---|---|",
            *(_row(row, rows) for row in ROWS if row in rows),
            "",
        ]
    return "\n".join(text)


def _row(row: str, rows: dict[str, list[Line]]) -> str:
    lines, teacher, without = rows[row], rows.get("teacher", []), rows.get(ROWS[row].without, [])
    one, whole = lines[0], teacher[0] if teacher else None
    smaller = {name: f" ({whole[name] / one[name]:.1f} x smaller)" if whole else "" for name in ("parameters", "bytes")}
    share = statistics.fmean(map(_score, lines)) / statistics.fmean(map(_score, teacher)) if teacher else None
    cells = [
        f"`{row}`",
        ROWS[row].source,
        f"{one['parameters'] / 1e6:.1f} M{smaller['parameters']}",
        f"{one['bytes'] / 1e6:.1f} MB{smaller['bytes']}",
        _spread(lines),
        f"{share:.1%}" if share else "",
        _spread(without) if without else "",
        *(_latency(lines, size) for size in ("batch_1", "batch_32")),
    ]
    return f"| {' | '.join(cells)} |"


def _score(line: Line) -> float:
    return line["eval"][TASKS[line["task"]].metric]


def _spread(lines: list[Line]) -> str:
    """Return the mean in percent, with the lowest, the highest and the number of seeds."""
    values = [100 * _score(line) for line in lines]
    mean = f"{statistics.fmean(values):.1f}"
    return f"{mean} (1)" if len(values) == 1 else f"{mean} [{min(values):.1f}, {max(values):.1f}] ({len(values)})"


def _latency(lines: list[Line], size: str) -> str:
    """Return the median over seeds, and how many times as fast as the teacher in the same process."""
    taken = statistics.median(line["milliseconds"][size] for line in lines)
    ratio = statistics.median(line["teacher_milliseconds"][size] / line["milliseconds"][size] for line in lines)
    return f"{taken:.2f} ({ratio:.1f} x)"
