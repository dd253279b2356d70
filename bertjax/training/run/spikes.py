"""Losses that jump: which one, at which step, on which rows."""

import logging
import math

import numpy as np

from bertjax.data.pipeline import Feed, StepSpec
from bertjax.training.run.metrics import MetricsLog

log = logging.getLogger(__name__)


class SpikeDetector:
    """Detects losses that are far above their running mean.

    Args:
      deviations: standard deviations above the mean from which on a loss is a spike.
      horizon: steps over which mean and deviation are taken, with exponential weights. No earlier step is a spike.
    """

    def __init__(self, deviations: float = 6.0, horizon: int = 100):
        self._deviations, self._horizon = deviations, horizon
        self._means: dict[str, tuple[int, float, float]] = {}

    def find(self, losses: dict[str, float]) -> dict[str, tuple[float, float]]:
        """Return {name: (loss, deviations above the mean)} of the losses of a step that jump, or are not finite.

        The running mean counts a spike as if it were just as high as allowed. One spike hardly moves the mean, and a
        lasting change of the loss does.
        """
        spikes = {}
        for name, loss in ((name, float(loss)) for name, loss in losses.items()):
            steps, mean, variance = self._means.get(name, (0, loss, 0.0))
            deviation = max(variance, 1e-12) ** 0.5
            above = (loss - mean) / deviation
            if steps >= self._horizon and not above <= self._deviations:
                spikes[name] = (loss, above)
            if not math.isfinite(loss):
                continue
            share = max(1.0 / self._horizon, 1.0 / (steps + 1))
            change = self._deviations * deviation if name in spikes else loss - mean
            variance = (1.0 - share) * (variance + share * change**2)
            self._means[name] = (steps + 1, mean + share * change, variance)
        return spikes


class SpikeReport:
    """Logs the spikes of a run's losses, and writes them to `spikes.jsonl` with the rows of their batches."""

    def __init__(self, metrics_log: MetricsLog):
        self._metrics_log, self._detector = metrics_log, SpikeDetector()

    def check(self, step: int, metrics: dict[str, float], spec: StepSpec, feed: Feed) -> None:
        """Report the spikes among the metrics of a step that trained on `spec` from `feed`."""
        losses = {name: value for name, value in metrics.items() if name.endswith("_loss")}
        for name, (loss, above) in self._detector.find(losses).items():
            last = spec.first + spec.rows - 1
            log.warning(
                "%s of step %d is %.3f, %.1f deviations above its mean, on rows %d to %d of task %s (spikes.jsonl)",
                *(name, step, loss, above, spec.first, last, spec.task),
            )
            epochs, plans, rows = feed.locate(np.arange(spec.first, last + 1))
            located = {"epochs": epochs.tolist(), "plans": plans.tolist(), "rows": rows.tolist()}
            self._metrics_log.write_spike(step, {"name": name, "loss": loss, "deviations": above, **located})
