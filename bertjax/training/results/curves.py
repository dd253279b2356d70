"""`curves.png`: how the losses fell, over the reference curve of the configuration where one is known."""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from etils import epath

from bertjax.training.run.workdir import read_jsonl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Reference curves of the shipped configurations: mean and band of several seeds.
REFERENCES = Path(__file__).parent / "references"

# What the name of a metric begins with in `metrics.jsonl`.
TRAIN, HELDOUT = "train/", "eval/heldout/"


def reference_of(config_name: str) -> dict | None:
    """{metric: {step, mean, low, high}} and `seeds`, for a configuration that has a reference."""
    path = REFERENCES / f"{config_name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def draw(metrics: epath.Path, target: epath.Path, config_name: str) -> None:
    """Draws training and held-out loss and accuracy against the step.

    Args:
      metrics: `metrics.jsonl` of a run.
      target: the picture that is written.
      config_name: whose reference is drawn in gray.
    """
    from matplotlib.figure import Figure

    records = read_jsonl(metrics)
    reference = reference_of(config_name) or {}
    names = metrics_in(records)
    panels = ["mlm_loss", "mlm_accuracy"] if "mlm_loss" in names else losses_among(names) or ["loss"]
    figure = Figure(figsize=(5 * len(panels), 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if name in reference:
            band = reference[name]
            label = f"reference, {reference['seeds']} seeds"
            axes.fill_between(band["step"], band["low"], band["high"], color="0.85")
            axes.plot(band["step"], band["mean"], color="0.6", label=label)
        for prefix, style in ((TRAIN, {"alpha": 0.5, "linewidth": 0.8}), (HELDOUT, {"marker": "o"})):
            if points := points_of(records, "step", f"{prefix}{name}"):
                axes.plot(*zip(*points, strict=True), label=prefix.rstrip("/"), **style)
        axes.set(xlabel="step", title=name)
        if axes.lines:
            axes.legend()
        axes.grid(alpha=0.3)
    save(figure, target)


def metrics_in(records: Iterable[dict]) -> list[str]:
    """Names of the metrics of training and held-out rows, a mixture's with their task, as they first come."""
    names = {
        key.removeprefix(prefix): None
        for record in records
        for key in record
        for prefix in (TRAIN, HELDOUT)
        if key.startswith(prefix)
    }
    return list(names)


def losses_among(names: Iterable[str]) -> list[str]:
    """The losses among metrics, in alphabetical order."""
    return sorted(name for name in names if name.endswith("_loss"))


def points_of(records: Iterable[dict], *keys: str) -> list[tuple[float, ...]]:
    """The values under the keys, of each record that has them all; what was not finite is null there, and left out."""
    found = (tuple(record.get(key) for key in keys) for record in records)
    return [values for values in found if None not in values]


def save(figure: "Figure", target: epath.Path) -> None:
    """Writes a figure as PNG, on an object store too."""
    picture = io.BytesIO()
    figure.savefig(picture, dpi=120)
    target.write_bytes(picture.getvalue())
