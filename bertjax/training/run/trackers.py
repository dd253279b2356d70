"""Experiment trackers, which get a run's metrics as TensorBoard does.

A name chooses one. Its package is imported when a run starts. Each has its own thread: a hanging or failing tracker
stops neither the run nor the logs.
"""

import collections
import dataclasses
import importlib.util
import json
import logging
import math
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from bertjax.config.registry import Union
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError
from bertjax.training.run.workdir import Workdir, read_json, write_json
from bertjax.training.run.writer import LogWriter

_MOST_WAITING = 20_000
_SECONDS_BETWEEN_NOTES = 10.0

log = logging.getLogger(__name__)


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


def check_trackers(kinds: Sequence[str]) -> None:
    """Raise UserError if a tracker is unknown or its package is not installed."""
    for kind in kinds:
        package = TRACKERS.class_of(kind, trust_code=True).package
        if package and importlib.util.find_spec(package) is None:
            raise UserError(f"runtime.trackers has {kind!r}, and {package} is not installed; pip install {package}")


class Tracking:
    """Passes steps to a tracker in its own thread. As a context manager, it completes the tracker's run on exit.

    `tracker-KIND.json` in the workdir holds the tracker's run id and the last step that it received. A resumed run
    continues under this id and passes no step twice. If it trains steps again on other rows (`runtime.skip_rows`), it
    begins a new run of the tracker, whose settings name the one before as `continues`.

    Args:
      kind: tracker name, as in `runtime.trackers`.
      workdir: workdir of the run.
      settings: configuration as plain dicts.
    """

    every = 0.0

    def __init__(self, kind: str, workdir: Workdir, settings: dict[str, Any]):
        self.path = workdir.root / f"tracker-{kind.replace(':', '.')}.json"
        self._kind, self._workdir, self._settings = kind, workdir, settings
        self._waiting: collections.deque[tuple[int, dict[str, float]]] = collections.deque(maxlen=_MOST_WAITING)
        self._tracker: Tracker | None = None
        self._id, self._step = "", -1
        self._noted, self._is_ending = -math.inf, False
        self._writer = LogWriter()

    def __enter__(self) -> "Tracking":
        self._writer.add(self)
        self._writer.__enter__()
        return self

    def __exit__(self, *error) -> None:
        # The writer's final flush then calls `write`, which completes the run in the tracker's thread.
        self._is_ending = True
        self._writer.__exit__(*error)

    def add(self, step: int, scalars: dict[str, float]) -> None:
        """Queue a step's finite scalars for the tracker."""
        self._waiting.append((step, {name: value for name, value in scalars.items() if math.isfinite(value)}))

    def write(self) -> None:
        """Pass queued steps; at the end, complete the tracker's run. Only the tracker's thread calls this."""
        if self._tracker is None:  # start lazily, in this thread: importing and connecting may take long or fail
            if not self._waiting:
                return
            self._start()
        while self._waiting:
            step, scalars = self._waiting[0]  # removed only after it was written: an error must not lose it
            if step > self._step:
                self._tracker.write(step, scalars)
                self._step = step
            if self._waiting[0][0] == step:  # otherwise a full queue dropped it while it was written
                self._waiting.popleft()
        # A kill loses at most ten seconds of notes; some steps are then sent twice.
        if self._is_ending or time.monotonic() > self._noted + _SECONDS_BETWEEN_NOTES:
            self._note()
        if self._is_ending:
            self._tracker.close()
            self._tracker = None

    def _start(self) -> None:
        if not self._id and storage.exists(self.path):
            note = read_json(self.path, "id", "step")
            self._id, self._step = note["id"], note["step"]  # continue the tracker's run of an earlier start
            if note.get("skip_rows", []) != self._skipped_before(note["step"]):
                log.info("%s: a new run, since steps are trained again on other rows", self.path.stem)
                self._settings |= {"continues": self._id}
                self._id, self._step = "", -1
        # Libraries of trackers need a local folder for their files.
        root = self._workdir.root
        folder = os.getcwd() if storage.is_remote(root) else os.path.abspath(root)
        tracker = TRACKERS.class_of(self._kind, trust_code=True)()
        self._id = tracker.start(TrackedRun(root.name, folder, json.loads(json.dumps(self._settings)), self._id))
        self._tracker = tracker
        self._note()

    def _note(self) -> None:
        self._noted = time.monotonic()
        skipped = self._skipped_before(self._step)
        write_json(self.path, {"id": self._id, "step": self._step, "skip_rows": skipped})

    def _skipped_before(self, step: int) -> list[list[int]]:
        return [list(steps) for steps in self._settings["runtime"]["skip_rows"] if steps[0] < step]
