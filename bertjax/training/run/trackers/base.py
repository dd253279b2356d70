"""The interface of experiment trackers."""

import dataclasses
from typing import Any, ClassVar, NamedTuple


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
