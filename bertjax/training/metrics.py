"""Metrics on their way from the device to files: fetched one dispatch late, so that the device never waits."""

import collections
import dataclasses
import math
import time

import jax
from tensorboardX import SummaryWriter

from bertjax.models.config import EncoderConfig
from bertjax.training.files import Workdir, append_jsonl, cut_jsonl
from bertjax.training.flops import training_flops

# Sums over the steps of a run; every other metric is a value of its step.
_SUMMED = ("tokens", "token_pairs", "predictions", "rows")


@dataclasses.dataclass
class Totals:
    """What a run has consumed so far, over all its starts; saved with every checkpoint."""

    tokens: float = 0.0
    token_pairs: float = 0.0
    predictions: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    data_wait_seconds: float = 0.0


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
    """`metrics.jsonl` and TensorBoard events: one record a logged step, training and evaluation together."""

    def __init__(self, workdir: Workdir, encoder: EncoderConfig, totals: Totals, restored_step: int):
        self._path = workdir.metrics
        self._encoder = encoder
        self._totals = totals
        self._clock = time.monotonic()
        cut_jsonl(workdir.metrics, restored_step)
        cut_jsonl(workdir.samples, restored_step)
        self._events = SummaryWriter(str(workdir.events), purge_step=restored_step + 1)

    @property
    def totals(self) -> Totals:
        """Up to the last step that was counted, the seconds up to now."""
        now = time.monotonic()
        self._totals.seconds += now - self._clock
        self._clock = now
        return self._totals

    def count(self, metrics: dict[str, float]) -> None:
        """Adds a step to the totals."""
        for name in _SUMMED:
            setattr(self._totals, name, getattr(self._totals, name) + metrics[name])

    def waited(self, seconds: float) -> None:
        """Adds time that the loop waited for a batch."""
        self._totals.data_wait_seconds += seconds

    def write(self, step: int, metrics: dict[str, float], evaluation: dict[str, float] | None = None) -> None:
        """Writes the record of a step, with the totals so far; JSON knows no NaN, so what is not finite is null."""
        totals = self.totals
        values = {f"train/{name}": value for name, value in metrics.items() if name not in _SUMMED}
        values |= {f"eval/heldout/{name}": value for name, value in (evaluation or {}).items()}
        values |= {
            "tokens": totals.tokens,
            "rows": totals.rows,
            "flops": training_flops(self._encoder, totals.tokens, totals.token_pairs, totals.predictions),
            "seconds": totals.seconds,
            "data_wait_seconds": totals.data_wait_seconds,
        }
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        append_jsonl(self._path, {"step": step, **finite})
        for name, value in values.items():
            self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes the events."""
        self._events.close()
