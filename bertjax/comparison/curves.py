"""Draw the curves of several runs in one figure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from etils import epath

from bertjax.comparison.numbers import OTHER_TASK, task_changes
from bertjax.comparison.runs import Entry, Run
from bertjax.runtime.errors import UserError
from bertjax.training.results.curves import HELDOUT, TRAIN, losses_among, metrics_in, points_of, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Value of --x -> key in `metrics.jsonl`, and key -> axis label.
AXES = {"steps": "step", "tokens": "tokens", "flops": "flops", "seconds": "seconds"}
_AXIS_LABELS = {"step": "training step", "tokens": "training tokens", "flops": "FLOPs", "seconds": "seconds"}
FORMATS = (".png", ".svg", ".pdf")
_DPI = 200
# Runs that end within this ratio of FLOPs had one budget.
SAME_BUDGET = 1.5
_COLUMNS = 3
_STYLES: dict[str, dict[str, Any]] = {
    HELDOUT: {"marker": "o", "markersize": 4},
    TRAIN: {"alpha": 0.5, "linewidth": 0.8},
}


class Curve(NamedTuple):
    """A metric over an entry's runs; all arrays are [points]."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def curve_of(runs: Sequence[Run], key: str, axis: str) -> Curve | None:
    """Return mean, minimum and maximum of a metric over runs with different seeds.

    Held-out metrics and their x are averaged evaluation by evaluation, because an epoch may have one more step with
    another seed. An evaluation that a run lacks, or whose value is not finite, is left out. Training metrics are
    averaged at equal steps, with linear interpolation between a run's steps. The curve ends with the shortest run.

    Args:
      runs: the runs; runs without the metric are left out.
      key: the metric's key in `metrics.jsonl`.
      axis: key of the x axis.

    Returns:
      The curve, or None if no run has both keys or the runs have no steps in common.
    """
    runs = [run for run in runs if points_of(run.records, "step", axis, key)]
    if not runs:
        return None
    xs, ys = (_at_evaluations if key.startswith(HELDOUT) else _at_steps)(runs, key, axis)
    return Curve(xs.mean(0), ys.mean(0), ys.min(0), ys.max(0)) if xs.size else None


def _at_steps(runs: Sequence[Run], key: str, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """Return x and a metric at all steps of any run within the range that all runs cover; [runs, points]."""
    points = [np.array(points_of(run.records, "step", axis, key), np.float64) for run in runs]
    grid = np.unique(np.concatenate([values[:, 0] for values in points]))
    first, last = max(values[0, 0] for values in points), min(values[-1, 0] for values in points)
    grid = grid[(grid >= first) & (grid <= last)]
    xs, ys = (np.stack([np.interp(grid, values[:, 0], values[:, column]) for values in points]) for column in (1, 2))
    return xs, ys


def _at_evaluations(runs: Sequence[Run], key: str, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """Return x and a metric at the evaluations that all runs have with finite values; [runs, points]."""
    # A value that was not finite is None here, then NaN. Its evaluation still takes part in the matching of steps.
    points = [
        np.array([[record["step"], record.get(axis), record[key]] for record in run.records if key in record], float)
        for run in runs
    ]
    matches = np.stack([_matched(points[0][:, 0], values[:, 0]) for values in points])
    matches = matches[:, (matches >= 0).all(axis=0)]
    values = np.stack([of_run[indices] for of_run, indices in zip(points, matches)])
    values = values[:, np.isfinite(values).all(axis=(0, 2))]
    return values[..., 1], values[..., 2]


def _matched(reference: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return for each reference step the index of the one in `steps` if each is the nearest to the other, else -1."""
    distances = np.abs(reference[:, None] - steps)
    nearest = distances.argmin(axis=1)
    return np.where(distances.argmin(axis=0)[nearest] == np.arange(len(reference)), nearest, -1)


class Law(NamedTuple):
    """Loss = `factor` x FLOPs^-`exponent`, fitted to `points`, float64 [n, 2] of (FLOPs, loss)."""

    factor: float
    exponent: float
    points: np.ndarray

    def __str__(self) -> str:
        return f"{self.factor:.3g} x FLOPs^-{self.exponent:.3g}"


def law_of(entries: Sequence[Entry], metric: str) -> Law | None:
    """Fit a power law to the lowest held-out loss of each budget (Hoffmann et al., 2022, arXiv 2203.15556, 3.2).

    Only ends of finished runs count: before, the learning rate has not fallen.

    Returns:
      The law; None if there are fewer than three sizes of models, or fewer than three budgets.
    """
    sizes = {run.summary.get("parameters") for entry in entries for run in entry.runs} - {None}
    finished = (entry.runs for entry in entries if all(run.finished for run in entry.runs))
    curves = [curve_of(runs, f"{HELDOUT}{metric}", "flops") for runs in finished]
    if len(sizes) < 3 or not metric.endswith("loss") or any(task_changes(metric, entries[0], each) for each in entries):
        return None
    budgets: list[list[tuple[float, float]]] = []
    for flops, loss in sorted((curve.x[-1], curve.mean[-1]) for curve in curves if curve and curve.mean[-1] > 0):
        # Sizes pad differently, so useful FLOPs of one budget differ a little.
        if not budgets or flops > SAME_BUDGET * budgets[-1][0][0]:
            budgets.append([])
        budgets[-1].append((float(flops), float(loss)))
    if len(budgets) < 3:
        return None
    best = np.array([min(budget, key=lambda end: end[1]) for budget in budgets])
    slope, intercept = np.polyfit(*np.log(best).T, deg=1)
    return Law(float(np.exp(intercept)), float(-slope), best)


def smoothed(values: np.ndarray, points: int) -> np.ndarray:
    """Centered moving average over `points` values, truncated at the ends."""
    # Dividing by the number of values in each window, not by `points`, keeps the ends from dropping to 0.
    window = np.ones(min(points, len(values)))
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")


def check_axis(entries: Sequence[Entry], x: str) -> str:
    """Return the key of an x axis in `metrics.jsonl`.

    Raises:
      UserError: the axis is unknown, or an entry has no values for it.
    """
    available = [name for name, key in AXES.items() if all(points_of(entry.records, key) for entry in entries)]
    if x not in available:
        problem = "is not in the records of all runs" if x in AXES else "is not an axis"
        raise UserError(f"--x={x} {problem}; choose one of {', '.join(available)}")
    return AXES[x]


def choose_metrics(entries: Sequence[Entry], requested: Sequence[str]) -> list[str]:
    """Return the metrics to draw: the requested ones, or else the losses that at least two entries share.

    If no loss is shared, as with different objectives, all losses are drawn, each in its own panel.

    Raises:
      UserError: no entry has a requested metric, or none has a loss.
    """
    by_entry = [set(metrics_in(entry.records)) for entry in entries]
    available = sorted(set.union(*by_entry))
    if unknown := [name for name in requested if name not in available]:
        raise UserError(f"--metric={unknown[0]} is in no record; choose one of {', '.join(available)}")
    losses = losses_among(available)
    shared = [name for name in losses if sum(name in names for names in by_entry) >= 2]
    if not requested and not losses:
        raise UserError(f"no run has logged a loss; set --metric to one of {', '.join(available)}")
    # `dict.fromkeys` drops duplicates and keeps the order.
    return list(dict.fromkeys(requested)) or shared or losses


def draw(
    entries: Sequence[Entry], metrics: Sequence[str], axis: str, target: epath.Path, smooth: int = 1, log: str = ""
) -> None:
    """Draw one panel per metric, with all entries.

    Args:
      entries: the entries, each in its own color.
      metrics: metric names without `train/` or `eval/heldout/`.
      axis: key of the x axis in `metrics.jsonl`.
      target: file to write, in one of `FORMATS`; its folder is created.
      smooth: window of the moving average over a training curve, in logged points; 1 for none.
      log: logarithmic axes: `x`, `y`, `xy` or empty.
    """
    from matplotlib.figure import Figure

    columns = min(len(metrics), _COLUMNS)
    # Ceiling division.
    rows = -(-len(metrics) // columns)
    figure = Figure(figsize=(5 * columns, 4 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for axes, metric in zip(panels, metrics):
        title = "held out: points, training: thin"
        for index, entry in enumerate(entries):
            mark = ""
            # Scores on different held-out tasks are drawn together but marked: their levels cannot be compared.
            if _is_score(entry, metric) and task_changes(metric, entries[0], entry):
                mark = OTHER_TASK
                title = f"held out: points, training: thin\n{OTHER_TASK} another held-out task than {entries[0].name}"
            draw_entry(axes, entry, metric, axis, f"C{index}", smooth, mark)
        if axis == "flops" and (law := law_of(entries, metric)):
            flops = law.points[:, 0]
            axes.plot(flops, law.factor * flops**-law.exponent, color="black", linestyle="--", label=str(law))
        axes.set(xlabel=_AXIS_LABELS[axis], ylabel=metric.replace("_", " "))
        axes.set(**{f"{scale}scale": "log" for scale in log})
        if axes.lines:
            axes.legend(title=title, title_fontsize="small")
        axes.grid(alpha=0.3)
    for axes in panels[len(metrics) :]:
        axes.remove()
    target.parent.mkdir(parents=True, exist_ok=True)
    save(figure, target, _DPI)


def _is_score(entry: Entry, metric: str) -> bool:
    """Return whether a metric measures predictions, unlike a learning rate."""
    return bool(losses_among([metric])) or any(f"{HELDOUT}{metric}" in record for record in entry.records)


def draw_entry(axes: "Axes", entry: Entry, metric: str, axis: str, color: str, smooth: int = 1, mark: str = "") -> None:
    """Draw training as a thin line, held-out rows as points, and seeds as a band from minimum to maximum."""
    label = f"{entry.name}{mark}, {len(entry.runs)} seeds" if len(entry.runs) > 1 else f"{entry.name}{mark}"
    if label.startswith("_"):  # matplotlib leaves such labels out of the legend
        # A zero-width space in front hides the underscore from matplotlib, not from the reader.
        label = f"\u200b{label}"
    for prefix, style in _STYLES.items():
        if curve := curve_of(entry.runs, f"{prefix}{metric}", axis):
            if prefix == TRAIN:
                curve = Curve(curve.x, *(smoothed(values, smooth) for values in curve[1:]))
            axes.plot(curve.x, curve.mean, color=color, label=label, **style)
            label = None  # one legend entry for both lines
            if len(entry.runs) > 1:
                axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)
