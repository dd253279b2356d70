"""Record failures of a run, so that a start that fails like the previous one can exit with a different code."""

import logging
import time

import jax
from etils import epath

from bertjax.runtime.errors import FailedAgain, RunFailed, UserError
from bertjax.runtime.storage import reason_of
from bertjax.training.parallel import processes
from bertjax.training.run.workdir import read_jsonl, write_jsonl

# Number of recorded failures; older ones are dropped.
_KEPT = 100
# XLA status codes for errors in the program itself, which fail on every device.
_OF_PROGRAM = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED", "FAILED_PRECONDITION", "OUT_OF_RANGE")

log = logging.getLogger(__name__)


class NotFinite(RunFailed):
    """Too many consecutive losses or gradients are not finite. All processes detect this at the same step."""


class Failures:
    """A run's failures over all starts, in `failures.jsonl`: checkpoint, step, reason and time.

    A failure counts if the same step from the same checkpoint would probably fail again. These are non-finite losses
    and, with one process, all unexpected errors except for device errors (`is_of_device`). With several processes an
    unexpected error may only be a consequence of another process's end. Errors in storage, input or saving do not
    count, because their cause is not in the step.

    Args:
      path: the file.
      checkpoint: step that this start continues from.
    """

    def __init__(self, path: epath.Path, checkpoint: int):
        self._path, self._checkpoint = path, checkpoint
        # One process reads for all, so that every process can decide by itself whether a failure repeats.
        records = processes.together(lambda: read_jsonl(path)[-_KEPT:] if processes.is_writer() else [])
        self._records = processes.gather(records, "failures")[0]

    def judge(self, step: int, error: Exception) -> Exception:
        """Record a step's failure and return the error to raise, with an explanation if the cause is known.

        If the last failure was the same, it is `FailedAgain`, which tells a launcher not to restart the run.
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
            except (OSError, UserError) as failure:  # must not hide the original error
                log.warning("%s cannot be written: %s", self._path, failure)
        # A first failure may be bad luck, such as a flipped bit. Only a repeated one is worth stopping a launcher.
        if not failed_before:
            return known
        if known is not error:
            return FailedAgain(f"{known}; it failed twice from checkpoint {self._checkpoint}")
        return FailedAgain(
            f"step {step} failed twice from checkpoint {self._checkpoint} ({record['reason']}); the same command would "
            "fail again: see docs/guides/running.md#when-a-run-diverges"
        )


def is_of_device(error: Exception) -> bool:
    """Return whether an error may come from the device rather than from the program on it.

    A failing chip raises XLA's INTERNAL, UNAVAILABLE, DATA_LOSS or ABORTED. The step may succeed on another machine, so
    a launcher should retry it. Out of memory and failed compilations happen everywhere.
    """
    return isinstance(error, jax.errors.JaxRuntimeError) and not str(error).startswith(_OF_PROGRAM)


def explained(error: Exception, step: int) -> Exception:
    """Return a one-line error with a remedy if a step ran out of memory, else the error itself."""
    if not (isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)):
        return error
    return RunFailed(
        f"step {step} does not fit into memory ({reason_of(error)}); set runtime.micro_tokens, so that a device "
        "computes a batch in parts, lower stages.N.batch or stages.N.examples, or set runtime.remat=full"
    )
