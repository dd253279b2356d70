"""The table of `benchmarks.compression`, from its lines."""

import statistics
from collections.abc import Callable

from benchmarks.compression_rows import ROWS
from benchmarks.compression_tasks import TASKS
from benchmarks.resumable import Line

# {start of the names of a line's latencies: name in the table}
_RUNTIMES = {"": "", "onnx_": "ONNX: "}


def markdown(lines: list[Line]) -> str:
    """Return two tables for each task, of scores and of sizes; rows without lines are absent."""
    latest = {(line["task"], line["row"], line["seed"]): line for line in lines}
    tasks: dict[str, dict[str, list[Line]]] = {}
    for (task, row, _), line in sorted(latest.items()):
        tasks.setdefault(task, {}).setdefault(row, []).append(line)
    return "\n".join(text for task, rows in tasks.items() for text in (_scores(task, rows), _sizes(task, rows)))


def _scores(task: str, rows: dict[str, list[Line]]) -> str:
    majority = next(iter(rows.values()))[0]["baseline"].get("majority_accuracy")
    name = task if majority is None else f"{task} (majority {100 * majority:.1f})"
    teacher = rows.get("teacher", [])

    def cells(row: str, lines: list[Line]) -> list[str]:
        share = statistics.fmean(map(_score, lines)) / statistics.fmean(map(_score, teacher)) if teacher else None
        without = rows.get(ROWS[row].without, [])
        return [ROWS[row].source, _spread(lines), f"{share:.1%}" if share else "", _spread(without) if without else ""]

    return _table([name, "source", TASKS[task].metric, "of the teacher", "without the method"], rows, cells)


def _sizes(task: str, rows: dict[str, list[Line]]) -> str:
    whole = rows.get("teacher", [None])[0]
    has_onnx = any(line.get("onnx_milliseconds") for lines in rows.values() for line in lines)
    runtimes = _RUNTIMES if has_onnx else {"": ""}

    def cells(_: str, lines: list[Line]) -> list[str]:
        [one, *_] = lines
        parts = []
        for name, unit in (("parameters", "M"), ("bytes", "MB")):
            smaller = f" ({whole[name] / one[name]:.1f}x)" if whole else ""
            parts.append(f"{one[name] / 1e6:.1f} {unit}{smaller}")
        return [*parts, *(latency(lines, runtime, size) for runtime in runtimes for size in ("batch_1", "batch_32"))]

    latencies = [f"{runtimes[runtime]}ms at {size}" for runtime in runtimes for size in (1, 32)]
    return _table([task, "parameters", "bytes", *latencies], rows, cells)


def _table(columns: list[str], rows: dict[str, list[Line]], cells: Callable[[str, list[Line]], list[str]]) -> str:
    """Return a table with the rows in the order of `ROWS`."""
    text = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    text += [f"| {' | '.join([f'`{row}`', *cells(row, rows[row])])} |" for row in ROWS if row in rows]
    return "\n".join([*text, ""])


def _score(line: Line) -> float:
    return line["eval"][TASKS[line["task"]].metric]


def _spread(lines: list[Line]) -> str:
    return spread([_score(line) for line in lines])


def spread(scores: list[float]) -> str:
    """Return the mean in percent, with the lowest and highest of several, and the number of seeds."""
    values = [100 * score for score in scores]
    mean = f"{statistics.fmean(values):.1f}"
    return f"{mean} (1)" if len(values) == 1 else f"{mean} [{min(values):.1f}, {max(values):.1f}] ({len(values)})"


def latency(lines: list[Line], runtime: str, size: str) -> str:
    """Return the median over seeds, and how many times as fast as the teacher in the same process; empty if absent."""
    ours, theirs = f"{runtime}milliseconds", f"{runtime}teacher_milliseconds"
    pairs = [(line[ours][size], line[theirs][size]) for line in lines if line.get(ours)]
    if not pairs:
        return ""
    taken = statistics.median(own for own, _ in pairs)
    ratio = statistics.median(teacher / own for own, teacher in pairs)
    return f"{taken:.2f} ({ratio:.1f}x)"
