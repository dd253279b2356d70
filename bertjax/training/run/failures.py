"""What ended earlier starts of a run, so that a start that would end like the one before says so by its exit code."""

import logging
import time

import jax
from etils import epath

from bertjax.errors import FailedAgain, RunFailed, UserError
from bertjax.storage import reason_of
from bertjax.training.parallel import processes
from bertjax.training.run.workdir import read_jsonl, write_jsonl

# Older failures are dropped.
_KEPT = 100
# Status codes of XLA for what is wrong with a program, on any device.
_OF_PROGRAM = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED", "FAILED_PRECONDITION", "OUT_OF_RANGE")

log = logging.getLogger(__name__)


class NotFinite(RunFailed):
    """Too many losses or gradients in a row are not finite. Every process of a run finds it at the same step."""


def check_finite(step: int, metrics: dict[str, float], max_skipped: int) -> None:
    """Warn of a step that was skipped, and raise NotFinite if too many in a row were."""
    if metrics["skipped"] > max_skipped:
        losses = ", ".join(f"{name}={value}" for name, value in metrics.items() if name.endswith("_loss"))
        raise NotFinite(
            f"loss or gradient is not finite at step {step} ({losses}, gradient_norm={metrics['gradient_norm']}); "
            "nothing was saved after it; raise runtime.max_skipped, or lower optimizer.learning_rate in a new workdir"
        )
    if metrics["skipped"] and processes.is_writer():
        log.warning("step %d was skipped: its loss or gradient is not finite", step)


class Failures:
    """The failures of the starts of a run, in `failures.jsonl`: checkpoint, step, reason and time.

    A failure counts if the same step from the same checkpoint would fail again: losses that are not finite, and with
    one process every unexpected error, except those of a device (`is_of_device`). With several processes an unexpected
    error may follow from the end of another one. Errors of storage, of input and of saving do not count: their cause is
    not in the step.

    Args:
      path: the file.
      checkpoint: the step from which this start continues.
    """

    def __init__(self, path: epath.Path, checkpoint: int):
        self._path, self._checkpoint = path, checkpoint
        # One process reads, and all know: each of them can then tell by itself whether a failure repeats.
        records = processes.together(lambda: read_jsonl(path)[-_KEPT:] if processes.is_writer() else [])
        self._records = processes.gather(records, "failures")[0]

    def judge(self, step: int, error: Exception) -> Exception:
        """Record the failure of a step, and return the error to raise, explained if its cause is known.

        It is `FailedAgain` if the last failure was the same.
        """
        if isinstance(error, (UserError, OSError)) and not isinstance(error, NotFinite):
            return error
        if is_of_device(error):
            return error
        known = explained(error, step)
        if jax.process_count() > 1 and not isinstance(error, NotFinite):
            return known
        place = {"checkpoint": self._checkpoint, "step": step}
        failed_before = bool(self._records) and self._records[-1].items() >= place.items()
        record = place | {"reason": reason_of(error), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        if processes.is_writer():
            try:
                write_jsonl(self._path, [*self._records[1 - _KEPT :], record])
            except (OSError, UserError) as failure:  # it must not hide the error
                log.warning("%s cannot be written: %s", self._path, failure)
        if not failed_before:
            return known
        if known is not error:
            return FailedAgain(f"{known}; it failed twice from checkpoint {self._checkpoint}")
        return FailedAgain(
            f"step {step} failed twice from checkpoint {self._checkpoint} ({record['reason']}); the same command would "
            "fail again: see docs/guides/running.md#when-a-run-diverges"
        )


def is_of_device(error: Exception) -> bool:
    """Return whether an error may come from a device and not from the program that it runs.

    A chip that fails raises INTERNAL, UNAVAILABLE, DATA_LOSS or ABORTED of XLA. The same step may succeed on another
    machine, so a launcher should try it again. Too little memory, and what XLA cannot compile, fail everywhere.
    """
    return isinstance(error, jax.errors.JaxRuntimeError) and not str(error).startswith(_OF_PROGRAM)


def explained(error: Exception, step: int) -> Exception:
    """Return the error to raise for one that ends a step: one line with a remedy if memory was too small."""
    if not (isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)):
        return error
    return RunFailed(
        f"step {step} does not fit into memory ({reason_of(error)}); set runtime.micro_tokens, so that a device "
        "computes a batch in parts, lower stages.N.batch or stages.N.examples, or set runtime.remat=full"
    )
