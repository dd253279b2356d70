"""`curves.png`: how the losses fell, over the reference curve of the configuration where one is known."""

import io
import json
from pathlib import Path

from etils import epath

from bertjax.training.files import read_jsonl

# Reference curves of the shipped configurations: mean and band of several seeds.
REFERENCES = Path(__file__).parent / "references"


def reference_of(config_name: str) -> dict | None:
    """{metric: {step, mean, low, high}} and `seeds`, for a configuration that has a reference."""
    path = REFERENCES / f"{config_name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def draw(metrics: epath.Path, target: epath.Path, config_name: str) -> None:
    """Draws training and held-out loss and accuracy against the step.

    Args:
      metrics: `metrics.jsonl` of a run.
      target: the picture that is written.
      config_name: whose reference is drawn in grey.
    """
    from matplotlib.figure import Figure

    records = read_jsonl(metrics)
    reference = reference_of(config_name) or {}
    panels = ("mlm_loss", "mlm_accuracy") if any("train/mlm_loss" in record for record in records) else _losses(records)
    figure = Figure(figsize=(5 * len(panels), 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if name in reference:
            band = reference[name]
            label = f"reference, {reference['seeds']} seeds"
            axes.fill_between(band["step"], band["low"], band["high"], color="0.85")
            axes.plot(band["step"], band["mean"], color="0.6", label=label)
        for prefix, style in (("train", {"alpha": 0.5, "linewidth": 0.8}), ("eval/heldout", {"marker": "o"})):
            points = [(r["step"], r[key]) for r in records if (key := f"{prefix}/{name}") in r and r[key] is not None]
            if points:
                axes.plot(*zip(*points, strict=True), label=prefix, **style)
        axes.set(xlabel="step", title=name)
        if axes.lines:
            axes.legend()
        axes.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=120)
    target.write_bytes(picture.getvalue())


def _losses(records: list[dict]) -> tuple[str, ...]:
    names = {key.split("/")[-1] for record in records for key in record if key.endswith("_loss")}
    return tuple(sorted(names)) or ("loss",)
