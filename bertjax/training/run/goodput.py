"""Time accounting over all starts of a run: goodput, speed and MFU."""

import contextlib
import functools
import json
import logging
import time

from etils import epath
from jax.sharding import Mesh

from bertjax.runtime import storage
from bertjax.runtime.devices import peak_flops
from bertjax.training.run.metrics import Totals

_SECONDS_BETWEEN_WRITES = 10.0

log = logging.getLogger(__name__)


class Elapsed:
    """Wall-clock time of each start of a run. `LogWriter` writes it every ten seconds, so a kill loses at most that.

    Args:
      path: JSON file with the seconds of each start.
    """

    def __init__(self, path: epath.Path):
        self.path = path
        self._before: list[float] = []
        with contextlib.suppress(storage.StorageError, TypeError, ValueError):  # a lost file does not stop a run
            self._before = [float(seconds) for seconds in json.loads(storage.read_bytes(path))]
        self._started = self._written = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall seconds over all starts."""
        return sum(self._before) + time.monotonic() - self._started

    def write(self, everything: bool) -> None:
        """Write the file if ten seconds have passed since the last write, or if `everything` is set.

        Raises:
          StorageError: it cannot be written.
        """
        now = time.monotonic()
        if everything or now - self._written > _SECONDS_BETWEEN_WRITES:
            self._written = now
            storage.write_text(self.path, json.dumps([*self._before, now - self._started], indent=2) + "\n")


def goodput_of(totals: Totals, wall_seconds: float) -> dict[str, float]:
    """Return the seconds spent on each activity, and the goodput.

    Goodput is the share of wall time, over all starts, that went into steps that were kept. The rest is start-up,
    compilation, waiting for data, checkpoints, evaluations, and steps that were lost when a start was killed.
    """
    # `totals` are restored with a checkpoint, so they do not contain lost steps; `wall_seconds` does.
    kinds = ("data_wait", "compile", "checkpoint", "evaluation")
    spent = {kind: getattr(totals, f"{kind}_seconds") for kind in kinds}
    # Time that is not spent on anything else is time for steps.
    steps = max(totals.seconds - sum(spent.values()), 0.0)
    return {"step": steps, **spent, "wall": wall_seconds, "goodput": steps / wall_seconds}


def speed(before: Totals, now: Totals, steps: int, wall_seconds: float, mesh: Mesh) -> dict[str, float]:
    """Return a run's speed between two logged steps, and the goodput up to now.

    Args:
      before: totals at the previous logged step.
      now: current totals.
      steps: number of steps between them.
      wall_seconds: wall seconds over all starts.
      mesh: devices of the run.

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
    """Return the model FLOPs utilization during steps (Chowdhery et al., 2022, arXiv 2204.02311).

    Returns:
      {`mfu`: on real tokens, `executed_mfu`: padding included}; empty if the device's peak is unknown. A value above 1
      means that a count is wrong; it is logged as an error and returned unchanged.
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
