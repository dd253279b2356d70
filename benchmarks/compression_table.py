"""The table of `benchmarks.compression`, from its lines."""

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.compression_rows import ROWS
from benchmarks.compression_tasks import TASKS

Line = dict[str, Any]
# {start of the names of a line's latencies: name in the table}
_RUNTIMES = {"": "", "onnx_": "ONNX: "}


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
        runtimes = (
            _RUNTIMES if any(line.get("onnx_milliseconds") for lines in rows.values() for line in lines) else [""]
        )
        latencies = [f"{_RUNTIMES[runtime]}ms at batch {size}" for runtime in runtimes for size in (1, 32)]
        columns = [name, "source", "parameters", "bytes", TASKS[task].metric, "of the teacher", "without the method"]
        text += [
            f"| {' | '.join(columns + latencies)} |",
            "|---" * len(columns + latencies) + "|",
            *(_row(row, rows, runtimes) for row in ROWS if row in rows),
            "",
        ]
    return "\n".join(text)


def _row(row: str, rows: dict[str, list[Line]], runtimes: Iterable[str]) -> str:
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
        *(_latency(lines, runtime, size) for runtime in runtimes for size in ("batch_1", "batch_32")),
    ]
    return f"| {' | '.join(cells)} |"


def _score(line: Line) -> float:
    return line["eval"][TASKS[line["task"]].metric]


def _spread(lines: list[Line]) -> str:
    """Return the mean in percent, with the lowest, the highest and the number of seeds."""
    values = [100 * _score(line) for line in lines]
    mean = f"{statistics.fmean(values):.1f}"
    return f"{mean} (1)" if len(values) == 1 else f"{mean} [{min(values):.1f}, {max(values):.1f}] ({len(values)})"


def _latency(lines: list[Line], runtime: str, size: str) -> str:
    """Return the median over seeds, and how many times as fast as the teacher in the same process; empty if absent."""
    ours, theirs = f"{runtime}milliseconds", f"{runtime}teacher_milliseconds"
    pairs = [(line[ours][size], line[theirs][size]) for line in lines if line.get(ours)]
    if not pairs:
        return ""
    taken = statistics.median(own for own, _ in pairs)
    ratio = statistics.median(teacher / own for own, teacher in pairs)
    return f"{taken:.2f} ({ratio:.1f} x)"
