"""Detect loss spikes and divergence, and report which rows the batch had."""

import dataclasses
import logging
import math
from typing import Any

import numpy as np

from bertjax.training.hooks.base import Hook, Run
from bertjax.training.parallel import processes
from bertjax.training.restore import Restored

log = logging.getLogger(__name__)


@dataclasses.dataclass
class RunningMean:
    """Running mean and variance of a loss, and its lowest mean so far.

    Attributes:
      count: finite losses so far.
      lowest: lowest mean; None before the horizon.
      lowest_deviation: `deviation` at that time.
      high_since: first step since which the mean has been far above its lowest value; None if it is not.
    """

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0
    lowest: float | None = None
    lowest_deviation: float = 0.0
    high_since: int | None = None

    @property
    def deviation(self) -> float:
        """Standard deviation of single losses."""
        return max(self.variance, 1e-12) ** 0.5


class SpikeDetector:
    """Detects losses far above their running mean (spikes), and running means far above their minimum (divergence).

    Args:
      deviations: threshold in standard deviations, for a loss above the mean and for the mean above its minimum.
      horizon: time constant of the exponential mean and variance, in steps. Earlier steps are never spikes.
      state: `state` of an earlier start's detector.
    """

    def __init__(self, deviations: float = 6.0, horizon: int = 100, state: dict[str, Any] | None = None):
        self._deviations, self._horizon = deviations, horizon
        state = state or {"stage": 0, "losses": {}}
        self._stage = state["stage"]
        self._means = {name: RunningMean(**values) for name, values in state["losses"].items()}

    @property
    def state(self) -> dict[str, Any]:
        """The detector's state, for JSON."""
        return {"stage": self._stage, "losses": {name: dataclasses.asdict(mean) for name, mean in self._means.items()}}

    @property
    def high(self) -> dict[str, int]:
        """{loss whose mean is far above its minimum: first step since which it is}."""
        return {name: mean.high_since for name, mean in self._means.items() if mean.high_since is not None}

    def find(
        self, step: int, losses: dict[str, float], stage: int = 0, prefixes: tuple[str, ...] = ("",)
    ) -> dict[str, tuple[float, float]]:
        """Return {name: (loss, deviations above the mean)} for losses that spike or are not finite.

        A spike enters the running mean clipped at the threshold. A single spike hardly moves the mean, but a lasting
        change of the loss does. Each stage has its own row length and tasks, so means start again with each stage. A
        loss that is high at the end of a stage stays marked until its mean in the next stage is near the old minimum: a
        new stage does not cure divergence. Losses that it does not train are forgotten.

        Args:
          prefixes: beginnings of the names of all losses that the stage trains.
        """
        if stage != self._stage:
            # Keep only losses that are high now, with the old minimum but a new mean.
            self._stage = stage
            self._means = {
                name: dataclasses.replace(self._means[name], count=0, mean=0.0, variance=0.0)
                for name in self.high
                if name.startswith(prefixes)
            }
        spikes = {}
        for name, loss in ((name, float(loss)) for name, loss in losses.items()):
            known = self._means.get(name, RunningMean(mean=loss))
            above = (loss - known.mean) / known.deviation
            if known.count >= self._horizon and not above <= self._deviations:  # `not <=` is also true for NaN
                spikes[name] = (loss, above)
            if not math.isfinite(loss):
                continue
            # A plain mean over the first `horizon` steps, an exponential one afterwards.
            share = max(1.0 / self._horizon, 1.0 / (known.count + 1))
            change = self._deviations * known.deviation if name in spikes else loss - known.mean
            known.variance = (1.0 - share) * (known.variance + share * change**2)
            known.mean += share * change
            known.count += 1
            self._means[name] = known
            if known.count < self._horizon:
                continue
            if known.lowest is None or known.mean < known.lowest:
                known.lowest, known.lowest_deviation = known.mean, known.deviation
            is_high = known.mean > known.lowest + self._deviations * known.lowest_deviation
            known.high_since = (known.high_since or step) if is_high else None
        return spikes


class Spikes(Hook):
    """Logs loss spikes, and writes them to `spikes.jsonl` with their batch rows.

    All processes track the losses, because they must keep and delete the same checkpoints. Only the writer reports.

    Args:
      restored: has the detector's state at the restored step.
    """

    def __init__(self, restored: Restored):
        self._detector = SpikeDetector(state=restored.of_hooks.get("spikes"))

    def on_step(self, run: Run, step: int, metrics: dict[str, float]) -> None:
        losses = {name: value for name, value in metrics.items() if name.endswith("_loss")}
        high_before, spec, config = self._detector.high, run.timetable.at(step - 1), run.config
        trained = config.stages[spec.stage].among(config.tasks)
        prefixes = tuple(f"{task}/" for task in trained) if len(config.tasks) > 1 else ("",)
        spikes = self._detector.find(step, losses, spec.stage, prefixes)
        if not processes.is_writer():
            return
        notify = run.session.watchdog.notify
        # Warn once per divergence, at its first step: later checkpoints may all be bad, so earlier ones are held.
        for name in self._detector.high.keys() - high_before.keys():
            log.warning("the mean of %s is far above its lowest value; earlier checkpoints are kept", name)
            notify("diverged", step, name=name)
        for name, (loss, above) in spikes.items():
            last = spec.first + spec.rows - 1
            log.warning(
                "%s of step %d is %.3f, %.1f deviations above its mean, on rows %d to %d of task %s (spikes.jsonl)",
                *(name, step, loss, above, spec.first, last, spec.task),
            )
            notify("spike", step, name=name, loss=loss if math.isfinite(loss) else None)
            # Rows of the plans, so that the user can look at the examples or leave them out with `runtime.skip_rows`.
            epochs, plans, rows = run.feeds.train[spec.task, spec.seq_len].locate(np.arange(spec.first, last + 1))
            located = {"epochs": epochs.tolist(), "plans": plans.tolist(), "rows": rows.tolist()}
            run.log.append("spikes", step, name=name, loss=loss, deviations=above, **located)

    def on_save(self, run: Run, meta: dict[str, Any]) -> None:
        meta["spikes"] = self._detector.state
        run.restored.checkpoints.hold_before = min(self._detector.high.values(), default=None)
