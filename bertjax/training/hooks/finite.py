"""End a run whose loss or gradient stays non-finite."""

import logging

from bertjax.training.hooks.base import Hook, Run
from bertjax.training.parallel import processes
from bertjax.training.run.failures import NotFinite

log = logging.getLogger(__name__)


class Finite(Hook):
    """Warns of skipped steps, and raises NotFinite after more than `runtime.max_skipped` in a row."""

    def on_step(self, run: Run, step: int, metrics: dict[str, float]) -> None:
        if metrics["skipped"] > run.runtime.max_skipped:
            losses = ", ".join(f"{name}={value}" for name, value in metrics.items() if name.endswith("_loss"))
            raise NotFinite(
                f"loss, gradient or update is not finite at step {step} ({losses}, "
                f"gradient_norm={metrics['gradient_norm']}); "
                "nothing was saved after it; raise runtime.max_skipped, or lower optimizer.learning_rate in a new "
                "workdir"
            )
        if metrics["skipped"] and processes.is_writer():
            log.warning("step %d was skipped: its loss, gradient or update is not finite", step)
