"""Where the time of a run went, over all its starts, and traces of single steps."""

import contextlib
import json
import logging
import time

from etils import epath
from jax.sharding import Mesh

from bertjax.hardware.chips import peak_flops
from bertjax.training.run.metrics import Totals
from bertjax.training.run.workdir import write_json

_SECONDS_BETWEEN_NOTES = 10.0

log = logging.getLogger(__name__)


class Elapsed:
    """Wall seconds of every start of a run, noted now and then: a kill loses at most ten seconds of account.

    Args:
      path: a JSON list, a number for each start.
      writes: False only counts.
    """

    def __init__(self, path: epath.Path, writes: bool = True):
        self._path, self._writes = path, writes
        self._before: list[float] = []
        with contextlib.suppress(OSError, TypeError, ValueError):  # an account that is lost stops no run
            self._before = [float(seconds) for seconds in json.loads(path.read_text())]
        self._began = self._noted = time.monotonic()

    @property
    def seconds(self) -> float:
        """Of all starts."""
        return sum(self._before) + time.monotonic() - self._began

    def write(self, now: bool = False) -> None:
        """Writes the seconds down, if it was long ago or if asked to."""
        if self._writes and (now or time.monotonic() - self._noted > _SECONDS_BETWEEN_NOTES):
            self._noted = time.monotonic()
            with contextlib.suppress(OSError):  # the next note may do
                write_json(self._path, [*self._before, self._noted - self._began])


def goodput_of(totals: Totals, wall_seconds: float) -> dict[str, float]:
    """Seconds by what they were spent on, for steps that were kept, and goodput.

    Goodput is the share of the wall time of all starts that went into steps which were kept: what remains are start-up,
    compilation, waiting for data, checkpoints, evaluations, and steps that were lost with a start that was killed.
    """
    spent = {
        "data_wait": totals.data_wait_seconds,
        "compile": totals.compile_seconds,
        "checkpoint": totals.checkpoint_seconds,
        "evaluation": totals.evaluation_seconds,
    }
    steps = max(totals.seconds - sum(spent.values()), 0.0)
    return {"step": steps, **spent, "wall": wall_seconds, "goodput": steps / wall_seconds}


def mfu(useful_flops: float, executed_flops: float, seconds: float, mesh: Mesh) -> dict[str, float]:
    """Model FLOPs utilization over the seconds that went into steps, after Chowdhery et al. (2022), arXiv 2204.02311.

    Returns:
      {`mfu`: of useful operations, `executed_mfu`: with those on padding}; empty where the peak of a device is unknown.
    """
    peak = peak_flops(mesh.devices.flat[0].device_kind)
    if peak is None or not seconds:
        return {}
    available = peak * mesh.size * seconds
    return {"mfu": useful_flops / available, "executed_mfu": executed_flops / available}
