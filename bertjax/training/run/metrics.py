"""Metrics from the device to log files, totals over all starts, and what the time went into.

Metrics are fetched one dispatch late, so that the device never waits.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
from etils import epath
from jax.sharding import Mesh

from bertjax.runtime import storage
from bertjax.runtime.devices import peak_flops
from bertjax.training.run.trackers import Tracking
from bertjax.training.run.workdir import Workdir, read_jsonl
from bertjax.training.run.writer import Events, Journal, LogWriter

# Limit on spikes.jsonl: each spike lists its batch rows, so a loss that jumps at every step could fill a disk.
_MOST_BYTES_OF_SPIKES = 64 << 20
# Limit on lines to draw while a run is in progress: more than a figure has pixels.
_MOST_DRAWN = 4096

log = logging.getLogger(__name__)

# Metrics that are summed over all steps of a run; all others are values of single steps.
_SUMMED = ("tokens", "token_pairs", "predictions", "examples", "rows")
_ACTIVITIES = ("data_wait", "compile", "checkpoint", "evaluation")


@dataclasses.dataclass
class Totals:
    """Cumulative counters of a run over all its starts, saved with every checkpoint.

    A branch (`bertjax.training.branch`) continues the counts of its trunk, and its seconds start at 0, because its
    workdir has no wall time of the trunk. `trunk_...` are the counts at its first step; rates per second exclude them.
    """

    tokens: float = 0.0
    token_pairs: float = 0.0
    predictions: float = 0.0
    examples: float = 0.0
    rows: float = 0.0
    flops: float = 0.0
    executed_flops: float = 0.0
    seconds: float = 0.0
    data_wait_seconds: float = 0.0
    compile_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    trunk_tokens: float = 0.0
    trunk_flops: float = 0.0
    trunk_executed_flops: float = 0.0

    def spent(self) -> dict[str, float]:
        """Return the seconds spent on each activity; time that is not spent on anything else is time for steps."""
        other = {kind: getattr(self, f"{kind}_seconds") for kind in _ACTIVITIES}
        return {"step": max(self.seconds - sum(other.values()), 0.0), **other}

    @property
    def for_branch(self) -> "Totals":
        """A copy for a run that branches off at these totals."""
        counts = {name: getattr(self, name) for name in (*_SUMMED, "flops", "executed_flops")}
        trunk = {f"trunk_{name}": counts[name] for name in ("tokens", "flops", "executed_flops")}
        return Totals(**counts, **trunk)


class MetricsQueue:
    """Metrics still on the device, by dispatch. All but the newest dispatch can be fetched without waiting."""

    def __init__(self):
        self._pending: collections.deque[tuple[int, dict[str, jax.Array]]] = collections.deque()

    def put(self, first_step: int, metrics: dict[str, jax.Array]) -> None:
        """Add a dispatch's metrics, arrays [steps]; steps are counted from 1."""
        self._pending.append((first_step, metrics))

    def take(self, leave: int) -> list[tuple[int, dict[str, float]]]:
        """Fetch (step, metrics) for all steps in order, except for the newest `leave` dispatches."""
        # `device_get` blocks until its dispatch is done. Leaving the newest one in the queue keeps the device busy.
        taken = []
        while len(self._pending) > leave:
            first_step, metrics = self._pending.popleft()
            names, values = zip(*jax.device_get(metrics).items())
            for step, of_step in enumerate(zip(*values), first_step):
                taken.append((step, dict(zip(names, map(float, of_step)))))
        return taken


class MetricsLog:
    """Logs to `metrics.jsonl`, `evaluations.jsonl`, `samples.jsonl`, `spikes.jsonl` and TensorBoard; counts totals.

    Each line of `metrics.jsonl` holds the training and evaluation metrics of one logged step.

    Args:
      workdir: workdir of the run.
      totals: totals up to the restored step.
      restored_step: lines for later steps are dropped, since the run writes them again.
      writer: writes the files; if it is inactive, only totals are counted.
      trackers: receive the same scalars as TensorBoard.
      speed: returns more scalars for TensorBoard and the trackers, from the totals at the previous line, the current
        totals, and the number of steps between them.
      rewrites: whether the restored step's line is also written again, because its evaluation is missing.
    """

    def __init__(
        self,
        workdir: Workdir,
        totals: Totals,
        restored_step: int,
        writer: LogWriter,
        trackers: Sequence[Tracking] = (),
        speed: Callable[[Totals, Totals, int], dict[str, float]] = lambda before, now, steps: {},
        rewrites: bool = False,
    ):
        self._totals, self._trackers, self._speed = totals, trackers, speed
        self._last_line = restored_step, dataclasses.replace(totals)
        self._clock = time.monotonic()
        self._writer = writer
        self._drawn = {is_evaluation: Thinned() for is_evaluation in (False, True)}
        if writer.active:
            # Opening a journal drops lines after the restored step: the run will log these steps again.
            last_step = restored_step - rewrites
            lasts = {"metrics": last_step, "samples": last_step, "evaluations": last_step, "spikes": restored_step}
            most = {"spikes": _MOST_BYTES_OF_SPIKES}
            self._journals = {
                name: Journal(getattr(workdir, name), last, most.get(name, math.inf)) for name, last in lasts.items()
            }
            self._events = Events(workdir.events, restored_step)
            for line in read_jsonl(workdir.metrics, "step"):
                self._draw(line)
            writer.add(*self._journals.values(), self._events)

    @property
    def totals(self) -> Totals:
        """Totals up to the last counted step, with seconds up to now."""
        # Monotonic time: corrections of the system clock must not change the totals.
        now = time.monotonic()
        self._totals.seconds += now - self._clock
        self._clock = now
        return self._totals

    def count(self, metrics: dict[str, float], flops: float) -> None:
        """Add a step to the totals, with its FLOPs on real tokens."""
        for name in _SUMMED:
            setattr(self._totals, name, getattr(self._totals, name) + metrics[name])
        self._totals.flops += flops

    def dispatched(self, flops: float) -> None:
        """Add a dispatch's FLOPs, padding included."""
        self._totals.executed_flops += flops

    @contextlib.contextmanager
    def spending(self, kind: str) -> Iterator[None]:
        """Add the time spent in this context to `data_wait`, `compile`, `checkpoint` or `evaluation`."""
        start = time.monotonic()
        try:
            yield
        finally:
            name = f"{kind}_seconds"
            setattr(self._totals, name, getattr(self._totals, name) + time.monotonic() - start)

    def write(self, step: int, metrics: dict[str, float], evaluation: dict[str, float] | None = None) -> None:
        """Write a step's line, with the totals so far.

        Args:
          step: number of steps done.
          metrics: training metrics.
          evaluation: metrics of an evaluation after the step, named `eval/<set>/<metric>`, and `eval_ema/...`.
        """
        if not self._writer.active:
            return
        totals = self.totals
        # Counts of a single step are of no use; their totals follow.
        values = {f"train/{name}": value for name, value in metrics.items() if name not in _SUMMED}
        trunk = ("trunk_tokens",) if totals.trunk_tokens else ()
        logged = ("tokens", *trunk, "rows", "flops", "seconds", "data_wait_seconds")
        values |= (evaluation or {}) | {name: getattr(totals, name) for name in logged}
        self.append("metrics", step, **values)
        # Speeds depend on the machine and its load: they go to TensorBoard and the trackers only.
        last_step, before = self._last_line
        self._last_line = step, dataclasses.replace(totals)
        values |= self._speed(before, totals, step - last_step)
        for scalars in (self._events, *self._trackers):
            scalars.add(step, values)

    def _draw(self, line: dict[str, Any]) -> None:
        self._drawn[any(name.startswith("eval") for name in line)].add(line)

    @property
    def lines_to_draw(self) -> list[dict[str, Any]]:
        """Lines of this run in order of their steps, a few thousand of all, of evaluations as many as of others."""
        return sorted((line for each in self._drawn.values() for line in each.kept), key=lambda line: line["step"])

    def append(self, file: Literal["metrics", "samples", "evaluations", "spikes"], step: int, **record: Any) -> None:
        """Write a record of a step to a file. Non-finite values become None, because JSON has no NaN."""
        if self._writer.active:
            odd = {name: None for name, each in record.items() if isinstance(each, float) and not math.isfinite(each)}
            self._journals[file].append(line := {"step": step, **record, **odd})
            if file == "metrics":
                self._draw(line)

    def flush(self) -> None:
        """Write all buffered lines, unless the store does not answer."""
        self._writer.save()

    def close(self) -> None:
        """Write all buffered lines at the end of a run; log a warning if the store does not answer for a minute."""
        if not self._writer.flush():
            log.warning("the last lines of the logs could not be written; the checkpoints are complete")


class Thinned:
    """Every n-th of the lines that it gets, and the last. n doubles as they get many: no drawing costs more."""

    def __init__(self):
        self.kept: list[dict[str, Any]] = []
        self._every, self._number = 1, 0

    def add(self, line: dict[str, Any]) -> None:
        if self._number and (self._number - 1) % self._every:
            self.kept.pop()  # it was the last
        self.kept.append(line)
        if len(self.kept) > _MOST_DRAWN:
            self.kept, self._every = self.kept[::2], 2 * self._every
        self._number += 1


class Elapsed:
    """Wall-clock time of each start of a run. `LogWriter` writes it every ten seconds, so a kill loses at most that.

    Args:
      path: JSON file with the seconds of each start.
    """

    every = 10.0

    def __init__(self, path: epath.Path):
        self.path = path
        self._before: list[float] = []
        with contextlib.suppress(storage.StorageError, TypeError, ValueError):  # a lost file does not stop a run
            self._before = [float(seconds) for seconds in json.loads(storage.read_bytes(path))]
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall seconds over all starts."""
        return sum(self._before) + time.monotonic() - self._started

    def write(self) -> None:
        """Write the file.

        Raises:
          StorageError: it cannot be written.
        """
        storage.write_text(self.path, json.dumps([*self._before, time.monotonic() - self._started], indent=2) + "\n")


def goodput_of(totals: Totals, wall_seconds: float) -> dict[str, float]:
    """Return the seconds spent on each activity, and the goodput.

    Goodput is the share of wall time, over all starts, that went into steps that were kept. The rest is start-up,
    compilation, waiting for data, checkpoints, evaluations, and steps that were lost when a start was killed.
    """
    # `totals` are restored with a checkpoint, so they do not contain lost steps; `wall_seconds` does.
    spent = totals.spent()
    return {**spent, "wall": wall_seconds, "goodput": spent["step"] / wall_seconds}


def speed_of(before: Totals, now: Totals, steps: int, wall_seconds: float, mesh: Mesh) -> dict[str, float]:
    """Return `speed/...` between two logged steps: tokens a second, seconds a step and MFU, and the goodput up to now.

    Some are left out if nothing was trained, or if the device's peak is unknown.
    """
    rates = {"goodput": now.spent()["step"] / wall_seconds}
    seconds = now.spent()["step"] - before.spent()["step"]
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
