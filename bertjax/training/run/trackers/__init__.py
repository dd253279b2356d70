"""Experiment trackers: adapters that also send a run's metrics to other libraries."""

from bertjax.config.registry import Union
from bertjax.training.run.trackers.base import Tracker

_HERE = "bertjax.training.run.trackers"
TRACKERS = Union(
    "runtime.trackers",
    Tracker,
    "wandb",
    {name: f"{_HERE}.kinds:{name.capitalize()}Tracker" for name in ("wandb", "mlflow", "trackio")},
)
