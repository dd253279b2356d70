"""Experiment trackers: adapters that also send a run's metrics to other libraries.

A name chooses one. Its package is imported when a run starts.
"""

import dataclasses
import os
import secrets
import time
from typing import Any, ClassVar, NamedTuple

from bertjax.config.registry import Union


class TrackedRun(NamedTuple):
    """Description of a run for a tracker.

    Attributes:
      name: name of the workdir.
      folder: local folder for the tracker's files.
      settings: configuration as plain dicts.
      id: return value of the first `start`; empty at the first start.
    """

    name: str
    folder: str
    settings: dict[str, Any]
    id: str = ""


@dataclasses.dataclass
class Tracker:
    """Base class for trackers. A single thread calls all methods. Errors are logged, and the call is repeated later.

    Attributes:
      package: required package, which the user has to install.
    """

    package: ClassVar[str] = ""

    def start(self, run: TrackedRun) -> str:
        """Open a new run, or continue the one with `run.id`, and return its id."""
        raise TypeError(f"{type(self).__name__} has no start()")

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Log a step's scalars, all finite. Steps increase, even across resumes."""
        raise TypeError(f"{type(self).__name__} has no write()")

    def close(self) -> None:
        """Complete the run, or this start's part of it."""
        raise TypeError(f"{type(self).__name__} has no close()")


class WandbTracker(Tracker):
    """A W&B run that keeps its id across resumes.

    W&B's environment variables apply; `WANDB_MODE=offline` writes to the workdir.
    """

    package = "wandb"

    def start(self, run):
        import wandb

        # `allow` creates a run with this id or continues it, so a resumed run stays one curve.
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "bertjax"),
            name=run.name,
            id=run.id or None,
            config=run.settings,
            dir=os.environ.get("WANDB_DIR", run.folder),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        return self._run.id

    def write(self, step, scalars):
        self._run.log(scalars, step=step)

    def close(self):
        self._run.finish()


class MlflowTracker(Tracker):
    """An MLflow run in the experiment `MLFLOW_EXPERIMENT_NAME`, by default `bertjax`.

    Writes to the server or database in `MLFLOW_TRACKING_URI`, or to files in the workdir.
    """

    package = "mlflow"

    def start(self, run):
        import mlflow

        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not uri:  # files need no database package, but MLflow 3 only writes them with this variable
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = f"file:{run.folder}/mlruns"
        self._client = mlflow.MlflowClient(uri)
        if run.id:
            self._id = run.id
            self._client.update_run(self._id, status="RUNNING")
            return self._id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "bertjax")
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        self._id = self._client.create_run(number, run_name=run.name).info.run_id
        self._client.log_dict(self._id, run.settings, "config.json")
        return self._id

    def write(self, step, scalars):
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in scalars.items()])

    def close(self):
        self._client.set_terminated(self._id)


class TrackioTracker(WandbTracker):
    """A trackio run in the project `TRACKIO_PROJECT`, by default `bertjax`. trackio resumes runs by name.

    Keeps runs in a local database (`TRACKIO_DIR`) or a Space (`TRACKIO_SPACE_ID`).
    """

    package = "trackio"

    def start(self, run):
        import trackio

        name = run.id or f"{run.name}-{secrets.token_hex(4)}"  # trackio would merge runs with equal names
        project = os.environ.get("TRACKIO_PROJECT", "bertjax")
        options = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        # Such a run has the methods of one of W&B.
        self._run = trackio.init(project, name=name, config=run.settings, resume="allow", **options)
        return name


TRACKERS = Union(
    "runtime.trackers",
    Tracker,
    "wandb",
    {name: f"{__name__}:{name.capitalize()}Tracker" for name in ("wandb", "mlflow", "trackio")},
)
