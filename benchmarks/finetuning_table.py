"""The tables of `benchmarks/finetuning.py`, made from its lines."""

import statistics
from collections.abc import Sequence

ARMS = {"bertjax": "bertjax", "trainer": "transformers `Trainer`"}


def effect(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return the difference of the means in pooled standard deviations (Cohen's d), None if that deviation is 0."""
    if min(len(ours), len(theirs)) < 2:
        return None
    squares = sum((len(arm) - 1) * statistics.variance(arm) for arm in (ours, theirs))
    pooled = (squares / (len(ours) + len(theirs) - 2)) ** 0.5
    return (statistics.fmean(ours) - statistics.fmean(theirs)) / pooled if pooled else None


def ratios(ours: dict[int, dict], theirs: dict[int, dict], name: str) -> list[float]:
    """Return the other arm's seconds / bertjax's, for the seeds that both have: they ran one after the other."""
    return [theirs[seed][name] / ours[seed][name] for seed in ours if seed in theirs]


def markdown(lines: Sequence[dict]) -> str:
    """Return two tables, scores and seconds, with the tasks in the order of the file."""
    runs: dict[str, dict[str, dict[int, dict]]] = {}
    for line in lines:
        runs.setdefault(line["task"], {arm: {} for arm in ARMS})[line["arm"]][line["seed"]] = line
    scores = [
        "| task | metric | arm | scores of the seeds | mean | deviation | difference / pooled deviation |",
        "|---|---|---|---|---|---|---|",
    ]
    seconds = [
        "| task | examples | arm | updates | training, s | with start and compiling, s | Trainer / bertjax, training "
        "| Trainer / bertjax, all |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task, arms in runs.items():
        present = [arm for arm in ARMS if arms[arm]]
        scores += [_score_row(task, metric, arm, arms) for metric in _metrics(arms) for arm in present]
        seconds += [_seconds_row(task, arm, arms) for arm in present]
    return "\n".join([*scores, "", *seconds])


def _metrics(arms: dict[str, dict[int, dict]]) -> list[str]:
    """Return the task's metric; for question answering, exact match and F1, the two metrics of SQuAD."""
    line = next(line for runs in arms.values() for line in runs.values())
    return [name for name in ("exact_match", line["metric"]) if name in line["scores"]]


def _score_row(task: str, metric: str, arm: str, arms: dict[str, dict[int, dict]]) -> str:
    runs = arms[arm]
    values, first = [runs[seed]["scores"][metric] for seed in sorted(runs)], next(iter(runs.values()))
    deviation = f"{100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    difference = ""
    if arm == "bertjax":
        deviations = effect(values, [line["scores"][metric] for line in arms["trainer"].values()])
        difference = f"{deviations:+.2f}" if deviations is not None else ""
    guess = f" (majority {100 * first['majority']:.1f})" if first["majority"] is not None else ""
    cells = [
        task,
        metric + guess,
        ARMS[arm],
        ", ".join(f"{100 * value:.1f}" for value in values),
        f"{100 * statistics.fmean(values):.2f}",
        deviation,
        difference,
    ]
    return f"| {' | '.join(cells)} |"


def _seconds_row(task: str, arm: str, arms: dict[str, dict[int, dict]]) -> str:
    runs = list(arms[arm].values())
    cells = [task, f"{runs[0]['train_examples']:,}", ARMS[arm], f"{runs[0]['updates']:,}"]
    cells += [f"{statistics.median(line[name] for line in runs):.1f}" for name in ("train_seconds", "wall_seconds")]
    for name in ("train_seconds", "wall_seconds"):
        speedups = ratios(arms["bertjax"], arms["trainer"], name) if arm == "bertjax" else []
        cells.append(
            f"{statistics.median(speedups):.2f} ({min(speedups):.2f} to {max(speedups):.2f})" if speedups else ""
        )
    return f"| {' | '.join(cells)} |"
