"""The curves of several runs in one picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from etils import epath

from bertjax.comparison.runs import Entry, Run
from bertjax.errors import UserError
from bertjax.training.results.curves import HELDOUT, TRAIN, losses_among, metrics_in, points_of, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# How a user calls an x axis -> its name in `metrics.jsonl`.
AXES = {"steps": "step", "tokens": "tokens", "flops": "flops", "seconds": "seconds"}
_COLUMNS = 3
_STYLES = {HELDOUT: {"marker": "o", "markersize": 4}, TRAIN: {"alpha": 0.5, "linewidth": 0.8}}


class Curve(NamedTuple):
    """A metric over the runs of an entry; all arrays are [points]."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def curve_of(runs: Sequence[Run], key: str, axis: str) -> Curve | None:
    """The mean of a metric over runs with different seeds, the lowest and the highest.

    Held-out metrics are averaged evaluation by evaluation, and so is their x: an epoch may have a step more with
    another seed. Those of training are averaged at equal steps, each run read linearly between its own. A curve ends
    where the first run does.

    Args:
      runs: those that lack the metric are left out.
      key: its name in `metrics.jsonl`.
      axis: that of the x axis there.

    Returns:
      None where no run has both, or where no step is within all of them.
    """
    found = [np.array(points, np.float64) for run in runs if (points := points_of(run.records, "step", axis, key))]
    places = [np.arange(len(each)) if key.startswith(HELDOUT) else each[:, 0] for each in found]
    if not found or (first := max(each[0] for each in places)) > (last := min(each[-1] for each in places)):
        return None
    shared = np.unique(np.concatenate(places))
    shared = shared[(shared >= first) & (shared <= last)]
    xs, ys = (
        np.stack([np.interp(shared, place, each[:, column]) for place, each in zip(places, found)]) for column in (1, 2)
    )
    return Curve(xs.mean(0), ys.mean(0), ys.min(0), ys.max(0))


def check_axis(entries: Sequence[Entry], x: str) -> str:
    """The name in `metrics.jsonl` of an x axis.

    Raises:
      UserError: it is none, or an entry has no record with it.
    """
    there = [name for name, key in AXES.items() if all(points_of(entry.records, key) for entry in entries)]
    if x not in there:
        what = "is not in the records of all runs" if x in AXES else "is no axis"
        raise UserError(f"--x={x} {what}; choose one of {', '.join(there)}")
    return AXES[x]


def choose_metrics(entries: Sequence[Entry], wanted: Sequence[str]) -> list[str]:
    """The metrics to draw: those that are wanted, by default the losses that two entries share.

    Raises:
      UserError: no record has one that is wanted, or no loss is shared.
    """
    of_entries = [set(metrics_in(entry.records)) for entry in entries]
    there = sorted(set.union(*of_entries))
    if unknown := [name for name in wanted if name not in there]:
        raise UserError(f"--metric={unknown[0]} is in no record; choose among {', '.join(there)}")
    shared = [name for name in losses_among(there) if sum(name in names for names in of_entries) > 1]
    if not wanted and not shared:
        raise UserError(f"no two of the runs share a loss; choose what to draw with --metric among {', '.join(there)}")
    return list(dict.fromkeys(wanted)) or shared


def draw(entries: Sequence[Entry], metrics: Sequence[str], axis: str, target: epath.Path) -> None:
    """Draws a panel a metric, in it each entry.

    Args:
      entries: a color each.
      metrics: their names without `train/` or `eval/heldout/`.
      axis: the x axis, by its name in `metrics.jsonl`.
      target: the picture that is written, in a folder that need not exist.
    """
    from matplotlib.figure import Figure

    columns = min(len(metrics), _COLUMNS)
    rows = -(-len(metrics) // columns)
    figure = Figure(figsize=(5 * columns, 4 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for axes, metric in zip(panels, metrics):
        for index, entry in enumerate(entries):
            draw_entry(axes, entry, metric, axis, f"C{index}")
        axes.set(xlabel=axis, title=metric)
        if axes.lines:
            axes.legend(title="held out: points, training: thin", title_fontsize="small")
        axes.grid(alpha=0.3)
    for axes in panels[len(metrics) :]:
        axes.remove()
    target.parent.mkdir(parents=True, exist_ok=True)
    save(figure, target)


def draw_entry(axes: "Axes", entry: Entry, metric: str, axis: str, color: str) -> None:
    """Draws training as a thin line, held-out rows with points, and seeds as bands from the lowest to the highest."""
    label = f"{entry.name}, {len(entry.runs)} seeds" if len(entry.runs) > 1 else entry.name
    for prefix, style in _STYLES.items():
        if curve := curve_of(entry.runs, f"{prefix}{metric}", axis):
            axes.plot(curve.x, curve.mean, color=color, label=label, **style)
            label = None  # once for both
            if len(entry.runs) > 1:
                axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)
