"""Experiment trackers: services and files of other libraries that also receive the metrics of a run."""

from bertjax.registry import Union
from bertjax.training.run.trackers.base import Tracker

_HERE = "bertjax.training.run.trackers"
TRACKERS = Union(
    "runtime.trackers",
    Tracker,
    "wandb",
    {name: f"{_HERE}.{name}_tracker:Tracker" for name in ("wandb", "mlflow", "trackio")},
)
