"""Draw `curves.png`: metrics against steps, with the configuration's reference curve if it has one."""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etils import epath

from bertjax.runtime import storage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Reference curves for `configs/`: mean and range over several seeds.
REFERENCES = Path(__file__).parent / "references"

# Prefixes of metric names in `metrics.jsonl`.
TRAIN, HELDOUT, AVERAGED = "train/", "eval/heldout/", "eval_ema/heldout/"


def reference_of(config_name: str) -> dict | None:
    """Return a configuration's reference, {metric: {step, mean, low, high}} and `seeds`, or None without one."""
    path = REFERENCES / f"{config_name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def heldout_metrics(record: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the held-out metrics in a line of `metrics.jsonl`; those of the moving average are called `ema/NAME`."""
    names = {key: key.removeprefix(HELDOUT) for key in record if key.startswith(HELDOUT)}
    names |= {key: f"ema/{key.removeprefix(AVERAGED)}" for key in record if key.startswith(AVERAGED)}
    return {name: record[key] for key, name in names.items()}


def draw(records: Sequence[dict], target: epath.Path, config_name: str) -> None:
    """Draw training and held-out loss and accuracy against the step.

    Args:
      records: lines of `metrics.jsonl`.
      target: PNG file to write.
      config_name: name of the configuration; its reference is drawn in gray.
    """
    save(figure_of(records, panels_of(records), config_name), target)


def panels_of(records: Iterable[dict]) -> list[str]:
    """Return the metrics to draw: masked-LM loss and accuracy, or else all losses."""
    names = metrics_in(records)
    return ["mlm_loss", "mlm_accuracy"] if "mlm_loss" in names else losses_among(names) or ["loss"]


def figure_of(records: Sequence[dict], panels: Sequence[str], config_name: str, width: float = 5.0) -> "Figure":
    """Draw a panel for each metric: training as a thin line, held-out rows with markers, the reference in gray.

    Args:
      records: lines of `metrics.jsonl`.
      panels: metric names.
      config_name: name of the configuration; its reference is drawn.
      width: panel width in inches.
    """
    from matplotlib.figure import Figure

    reference = reference_of(config_name) or {}
    figure = Figure(figsize=(width * len(panels), 0.8 * width), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if name in reference:
            band = reference[name]
            label = f"reference, {reference['seeds']} seeds"
            axes.fill_between(band["step"], band["low"], band["high"], color="0.5", alpha=0.3, linewidth=0)
            axes.plot(band["step"], band["mean"], color="0.6", label=label)
        for prefix, style in ((TRAIN, {"alpha": 0.5, "linewidth": 0.8}), (HELDOUT, {"marker": "o"})):
            if points := points_of(records, "step", f"{prefix}{name}"):
                axes.plot(*zip(*points, strict=True), label=prefix.rstrip("/"), **style)
        axes.set(xlabel="step", title=name)
        if axes.lines:
            axes.legend()
        axes.grid(alpha=0.3)
    return figure


def metrics_in(records: Iterable[dict]) -> list[str]:
    """Return the names of training and held-out metrics, in order of appearance."""
    keys = (key for record in records for key in record if key.startswith((TRAIN, HELDOUT)))
    # A dict as an ordered set.
    return list(dict.fromkeys(key.removeprefix(TRAIN).removeprefix(HELDOUT) for key in keys))


def losses_among(names: Iterable[str]) -> list[str]:
    """Return the losses among metric names, in alphabetical order."""
    return sorted(name for name in names if name.endswith("_loss"))


def points_of(records: Iterable[dict], *keys: str) -> list[tuple[float, ...]]:
    """Return the values of the keys for each record that has them all; non-finite values (null) are left out."""
    # JSON has no NaN: a value that was not finite is null in the log.
    points = (tuple(record.get(key) for key in keys) for record in records)
    return [values for values in points if None not in values]


def take_literally(figure: "Figure") -> None:
    """Turn off math parsing in all texts, except for the tick labels of logarithmic axes, which are formulas.

    Run names, class names and vocabulary pieces may contain dollar signs, and matplotlib fails on invalid formulas.
    """
    from matplotlib.text import Text

    axes = [axis for each in figure.axes for axis in (each.xaxis, each.yaxis) if axis.get_scale() == "log"]
    # An axis label is plain text, on a logarithmic axis too.
    formulas = {text for axis in axes for text in axis.findobj(Text) if text is not axis.label}
    for text in figure.findobj(Text):
        text.set_parse_math(text in formulas)


def save(figure: "Figure", target: epath.Path, dpi: int = 120) -> None:
    """Write a figure as PNG, SVG or PDF, depending on the suffix; `target` may be on an object store."""
    # Draw in memory first: an object store needs the whole file at once, and a retry must not draw again.
    picture = io.BytesIO()
    take_literally(figure)
    figure.savefig(picture, dpi=dpi, format=target.suffix[1:])
    storage.retry(lambda: storage.write_bytes(target, picture.getvalue()), target)
