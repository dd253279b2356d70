"""What a tracker of another library must do."""

import dataclasses
from typing import Any, ClassVar, NamedTuple


class TrackedRun(NamedTuple):
    """What a tracker needs to know of a run.

    Attributes:
      name: the name of the workdir.
      folder: a local folder for files of the tracker.
      settings: the configuration as plain dicts.
      id: what `start` returned when the run was first started; empty then.
    """

    name: str
    folder: str
    settings: dict[str, Any]
    id: str = ""


@dataclasses.dataclass
class Tracker:
    """Sends metrics elsewhere. One thread calls all methods; what they raise is logged and tried again later.

    Attributes:
      package: the package to install.
    """

    package: ClassVar[str] = ""

    def start(self, run: TrackedRun) -> str:
        """Open the run, or continue the one with `run.id`, and return its id."""
        raise TypeError(f"{type(self).__name__} has no start()")

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Log the finite scalars of a step. Steps ascend, also after a resume."""
        raise TypeError(f"{type(self).__name__} has no write()")

    def close(self) -> None:
        """Complete the run, or the part of it that this start has made."""
        raise TypeError(f"{type(self).__name__} has no close()")
