"""Metrics on their way from the device to files: fetched one dispatch late, so that the device never waits."""

import collections
import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator

import jax

from bertjax.training.run.events import Events
from bertjax.training.run.journal import Journal
from bertjax.training.run.workdir import Workdir

# Sums over the steps of a run; every other metric is a value of its step.
_SUMMED = ("tokens", "token_pairs", "predictions", "rows")


@dataclasses.dataclass
class Totals:
    """What a run has consumed so far, over all its starts; saved with every checkpoint."""

    tokens: float = 0.0
    token_pairs: float = 0.0
    predictions: float = 0.0
    rows: float = 0.0
    flops: float = 0.0
    executed_flops: float = 0.0
    seconds: float = 0.0
    data_wait_seconds: float = 0.0
    compile_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    evaluation_seconds: float = 0.0


class MetricsQueue:
    """Dispatches whose metrics are still on the device. All but the newest are taken without waiting for it."""

    def __init__(self):
        self._pending: collections.deque[tuple[int, dict[str, jax.Array]]] = collections.deque()

    def put(self, first_step: int, metrics: dict[str, jax.Array]) -> None:
        """Metrics [steps] of a dispatch; steps are counted from 1."""
        self._pending.append((first_step, metrics))

    def take(self, leave: int) -> list[tuple[int, dict[str, float]]]:
        """(step, metrics) of all steps but those of the newest `leave` dispatches, in order."""
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
    """`metrics.jsonl` and TensorBoard events, a record of training and evaluation together for each logged step, and
    beside them `samples.jsonl` and `spikes.jsonl`.

    Args:
      workdir: where they lie.
      totals: up to the restored step.
      restored_step: later records are dropped; they are written again.
      writes: False only counts.
    """

    def __init__(self, workdir: Workdir, totals: Totals, restored_step: int, writes: bool = True):
        self._totals = totals
        self._clock = time.monotonic()
        self._writes = writes
        if writes:
            self._records = Journal(workdir.metrics, restored_step)
            self._samples = Journal(workdir.samples, restored_step)
            self._spikes = Journal(workdir.spikes, restored_step)
            self._events = Events(workdir.events, restored_step)

    @property
    def totals(self) -> Totals:
        """Up to the last step that was counted, the seconds up to now."""
        now = time.monotonic()
        self._totals.seconds += now - self._clock
        self._clock = now
        return self._totals

    def count(self, metrics: dict[str, float], flops: float) -> None:
        """Adds a step to the totals, with its useful operations: padding does not count."""
        for name in _SUMMED:
            setattr(self._totals, name, getattr(self._totals, name) + metrics[name])
        self._totals.flops += flops

    def dispatched(self, flops: float) -> None:
        """Adds the operations of a dispatch with all its padding."""
        self._totals.executed_flops += flops

    @contextlib.contextmanager
    def spending(self, account: str) -> Iterator[None]:
        """Adds the time that the loop spends here to `data_wait`, `compile`, `checkpoint` or `evaluation`."""
        began = time.monotonic()
        try:
            yield
        finally:
            name = f"{account}_seconds"
            setattr(self._totals, name, getattr(self._totals, name) + time.monotonic() - began)

    def write(self, step: int, metrics: dict[str, float], evaluation: dict[str, float] | None = None) -> None:
        """Writes the record of a step, with the totals so far."""
        if not self._writes:
            return
        totals = self.totals
        values = {f"train/{name}": value for name, value in metrics.items() if name not in _SUMMED}
        values |= {f"eval/heldout/{name}": value for name, value in (evaluation or {}).items()}
        values |= {
            "tokens": totals.tokens,
            "rows": totals.rows,
            "flops": totals.flops,
            "seconds": totals.seconds,
            "data_wait_seconds": totals.data_wait_seconds,
        }
        self._records.append({"step": step, **_finite(values)})
        self._events.add(step, values)

    def write_samples(self, step: int, samples: list[dict]) -> None:
        """Writes what a model guessed at a step."""
        if self._writes:
            self._samples.append({"step": step, "samples": samples})

    def write_spike(self, step: int, record: dict) -> None:
        """Writes which loss jumped at a step, and on what."""
        if self._writes:
            self._spikes.append({"step": step, **_finite(record)})

    def flush(self) -> None:
        """Writes what could wait."""
        if self._writes:
            for journal in (self._records, self._samples, self._spikes):
                journal.flush()

    def close(self) -> None:
        """Writes what is left."""
        self.flush()
        if self._writes:
            self._events.close()


def _finite(record: dict) -> dict:
    """JSON knows no NaN: what is not finite is null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in record.items()
    }
