"""What the wall time of a run was spent on, over all its starts."""

import contextlib
import functools
import json
import logging
import time

from etils import epath
from jax.sharding import Mesh

from bertjax import storage
from bertjax.hardware.chips import peak_flops
from bertjax.training.run.metrics import Totals

_SECONDS_BETWEEN_WRITES = 10.0

log = logging.getLogger(__name__)


class Elapsed:
    """Wall seconds of every start of a run. `LogWriter` writes them every ten seconds: a kill loses at most those.

    Args:
      path: a JSON file with the seconds of each start.
    """

    def __init__(self, path: epath.Path):
        self.path = path
        self._before: list[float] = []
        with contextlib.suppress(storage.StorageError, TypeError, ValueError):  # a lost file does not stop a run
            self._before = [float(seconds) for seconds in json.loads(storage.read_bytes(path))]
        self._started = self._written = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds of all starts."""
        return sum(self._before) + time.monotonic() - self._started

    def write(self, everything: bool) -> None:
        """Write the file if ten seconds have passed since the last time, or `everything`.

        Raises:
          StorageError: it cannot be written.
        """
        now = time.monotonic()
        if everything or now - self._written > _SECONDS_BETWEEN_WRITES:
            self._written = now
            storage.write_text(self.path, json.dumps([*self._before, now - self._started], indent=2) + "\n")


def goodput_of(totals: Totals, wall_seconds: float) -> dict[str, float]:
    """Return the seconds by what they were spent on, and the goodput.

    Goodput is the share of the wall time of all starts that was spent on steps that were kept. The rest is start-up,
    compilation, waiting for data, checkpoints, evaluations, and steps that were lost when a start was killed.
    """
    spent = {
        "data_wait": totals.data_wait_seconds,
        "compile": totals.compile_seconds,
        "checkpoint": totals.checkpoint_seconds,
        "evaluation": totals.evaluation_seconds,
    }
    steps = max(totals.seconds - sum(spent.values()), 0.0)
    return {"step": steps, **spent, "wall": wall_seconds, "goodput": steps / wall_seconds}


def speed(before: Totals, now: Totals, steps: int, wall_seconds: float, mesh: Mesh) -> dict[str, float]:
    """Return how fast a run was between two lines of metrics, and the goodput up to now.

    Args:
      before: the totals at the line before.
      now: the totals now.
      steps: number of steps between them.
      wall_seconds: seconds of all starts.
      mesh: the devices of the run.

    Returns:
      {`speed/tokens_per_second`, `speed/step_seconds`, `speed/mfu`, `speed/executed_mfu`, `speed/goodput`}; some are
      left out if nothing was trained, or if the device's peak is unknown.
    """
    until_now = goodput_of(now, wall_seconds)
    rates = {"goodput": until_now["goodput"]}
    seconds = until_now["step"] - goodput_of(before, wall_seconds)["step"]
    if steps > 0 and seconds > 0:
        flops = now.flops - before.flops, now.executed_flops - before.executed_flops
        rates |= {"tokens_per_second": (now.tokens - before.tokens) / seconds, "step_seconds": seconds / steps}
        rates |= mfu(*flops, seconds, mesh)
    return {f"speed/{name}": value for name, value in rates.items()}


def mfu(useful_flops: float, executed_flops: float, seconds: float, mesh: Mesh) -> dict[str, float]:
    """Return the model FLOPs utilization over the seconds of steps (Chowdhery et al., 2022, arXiv 2204.02311).

    Returns:
      {`mfu`: for useful operations, `executed_mfu`: including those on padding}; empty if the device's peak is unknown.
      A share above 1 is an error of the counts: it is logged, and returned as it is.
    """
    peak = peak_flops(mesh.devices.flat[0].device_kind)
    if peak is None or not seconds:
        return {}
    available = peak * mesh.size * seconds
    shares = {"mfu": useful_flops / available, "executed_mfu": executed_flops / available}
    if max(shares.values()) > 1.0:
        _report_impossible(mesh.devices.flat[0].device_kind)
    return shares


@functools.cache  # once in a process, not at every line of metrics
def _report_impossible(device_kind: str) -> None:
    log.error("mfu is above 1: the FLOPs of this run or the peak of %s are wrong; please report it", device_kind)
