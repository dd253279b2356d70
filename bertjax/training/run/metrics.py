"""Metrics from the device to log files. They are fetched one dispatch late, so that the device never waits."""

import collections
import contextlib
import dataclasses
import logging
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
from etils import epath
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from bertjax.training.run.tracking import Tracking
from bertjax.training.run.workdir import Workdir, read_jsonl
from bertjax.training.run.writer import GrowingFile, Journal, LogWriter

# Limit on spikes.jsonl: each spike lists its batch rows, so a loss that jumps at every step could fill a disk.
_MOST_BYTES_OF_SPIKES = 64 << 20
# Limit on lines to draw while a run is in progress: more than a figure has pixels.
_MOST_DRAWN = 4096

log = logging.getLogger(__name__)

# Metrics that are summed over all steps of a run; all others are values of single steps.
_SUMMED = ("tokens", "token_pairs", "predictions", "examples", "rows")


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
            metrics = jax.device_get(metrics)
            count = len(next(iter(metrics.values())))
            taken += [
                (first_step + i, {name: float(values[i]) for name, values in metrics.items()}) for i in range(count)
            ]
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
            self._journals = {
                "metrics": Journal(workdir.metrics, last_step),
                "samples": Journal(workdir.samples, last_step),
                "evaluations": Journal(workdir.evaluations, last_step),
                "spikes": Journal(workdir.spikes, restored_step, _MOST_BYTES_OF_SPIKES),
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
        return sorted((line for each in self._drawn.values() for line in each.lines), key=lambda line: line["step"])

    def append(self, file: Literal["metrics", "samples", "evaluations", "spikes"], step: int, **record: Any) -> None:
        """Write a record of a step to a file. Non-finite values become None, because JSON has no NaN."""
        if self._writer.active:
            values = {name: None if _is_not_finite(value) else value for name, value in record.items()}
            self._journals[file].append({"step": step, **values})
            if file == "metrics":
                self._draw({"step": step, **values})

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
        self._kept: list[dict[str, Any]] = []
        self._last: list[dict[str, Any]] = []
        self._every, self._number = 1, 0

    @property
    def lines(self) -> list[dict[str, Any]]:
        return self._kept + [line for line in self._last if line not in self._kept[-1:]]

    def add(self, line: dict[str, Any]) -> None:
        self._last = [line]
        if self._number % self._every == 0:
            self._kept.append(line)
        self._number += 1
        if len(self._kept) == _MOST_DRAWN:
            self._kept, self._every = self._kept[::2], 2 * self._every


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


_FILE_BYTES = 4 << 20


class Events(GrowingFile):
    """Event files for one start, a new file every 4 MiB.

    Args:
      path: folder for the files.
      restored_step: step that this start continues from; TensorBoard drops later steps from earlier starts.
    """

    def __init__(self, path: epath.Path, restored_step: int):
        self._first_step = restored_step + 1
        # TensorBoard reads files in the order of their names. The time alone is not unique: two starts may share a
        # second.
        name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{self._first_step}.{os.getpid()}"
        super().__init__(
            path, lambda number: path / f"{name}.{number:05}", segment_bytes=_FILE_BYTES, header=self._first_records
        )

    def add(self, step: int, scalars: dict[str, float]) -> None:
        """Queue the scalars of a step."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self.put(_framed(Event(wall_time=time.time(), step=step, summary=Summary(value=values))))

    def _first_records(self, number: int) -> bytes:
        """Return a file's first records: the format version, and in the first file this start's step."""
        header = _framed(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if number == 0:
            # On a START record, TensorBoard discards events of this step and later ones from files that it read before.
            start = SessionLog(status=SessionLog.START)
            header += _framed(Event(wall_time=time.time(), step=self._first_step, session_log=start))
        return header


def _framed(event: Event) -> bytes:
    """Frame an event as a TFRecord: length, data, and a masked CRC-32C after each."""
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data))))
