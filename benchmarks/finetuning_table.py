"""The tables of `benchmarks/finetuning.py`: what its lines come to."""

import statistics
from collections.abc import Sequence

ARMS = {"bertjax": "bertjax", "trainer": "transformers `Trainer`"}


def effect(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Difference of the means in pooled standard deviations (Cohen's d); None where there is no deviation."""
    if min(len(ours), len(theirs)) < 2:
        return None
    squares = sum((len(arm) - 1) * statistics.variance(arm) for arm in (ours, theirs))
    pooled = (squares / (len(ours) + len(theirs) - 2)) ** 0.5
    return (statistics.fmean(ours) - statistics.fmean(theirs)) / pooled if pooled else None


def ratios(ours: dict[int, dict], theirs: dict[int, dict], name: str) -> list[float]:
    """Seconds of the other arm over those of bertjax, of the seeds that both have: they ran one after the other."""
    return [theirs[seed][name] / ours[seed][name] for seed in ours if seed in theirs]


def markdown(lines: Sequence[dict]) -> str:
    """Scores and seconds, a row for each task, metric and arm, with the tasks in the order of the file."""
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
    """That of the task; of answers to questions both that SQuAD is told by."""
    line = next(line for runs in arms.values() for line in runs.values())
    return [name for name in ("exact_match", line["metric"]) if name in line["scores"]]


def _score_row(task: str, metric: str, arm: str, arms: dict[str, dict[int, dict]]) -> str:
    runs = arms[arm]
    values, first = [runs[seed]["scores"][metric] for seed in sorted(runs)], next(iter(runs.values()))
    deviation = f"{100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    difference = ""
    if arm == "bertjax":
        found = effect(values, [line["scores"][metric] for line in arms["trainer"].values()])
        difference = f"{found:+.2f}" if found is not None else ""
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
        found = ratios(arms["bertjax"], arms["trainer"], name) if arm == "bertjax" else []
        cells.append(f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})" if found else "")
    return f"| {' | '.join(cells)} |"
