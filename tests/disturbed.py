"""python -m tests.disturbed FAULT FLAGS...: `python -m bertjax.train FLAGS...` with a fault injected into it."""

import functools
import itertools
import math
import os
import signal
import sys
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint._src.path.atomicity import AtomicRenameTemporaryPath

from bertjax.cli import train
from bertjax.config import export
from bertjax.runtime import command_line, storage
from bertjax.training import evaluation, loop, start
from bertjax.training.evaluation import Evaluator
from bertjax.training.parallel import processes
from bertjax.training.run import writer
from bertjax.training.run.checkpoint import Checkpoints
from bertjax.training.run.metrics import MetricsQueue
from bertjax.training.run.watchdog import Watchdog
from tests.waiting import LIMIT_SECONDS, PATIENCE

watchdogs: list[Watchdog] = []


class KnownWatchdog(Watchdog):
    def __init__(self, *args):
        super().__init__(*args)
        watchdogs.append(self)


def _hang(*_, **__) -> None:
    """Hang, and let the watchdog find at its next tick that the limit that it prints has passed."""
    [watchdog] = watchdogs
    name, _, limit, wall = watchdog._current
    print(f"limit of {name}: {limit:.0f} s", file=sys.stderr, flush=True)
    assert math.isfinite(limit)
    while not watchdog.path.exists():  # the thread that writes the logs has its first round
        time.sleep(0.01)
    watchdog._current = (name, time.monotonic() - 10.0, 1.0, wall)
    wait_to_be_killed()


def wait_to_be_killed(*_, **__) -> None:
    time.sleep(10_000)


def _hang_at(owner: type, name: str, call: int) -> None:
    original, calls = getattr(owner, name), itertools.count(1)

    def hangs(*args, **options):
        if next(calls) == call:
            _hang()
        return original(*args, **options)

    setattr(owner, name, hangs)


def _slow_save() -> None:
    finalize = ocp.CheckpointManager._finalize_checkpoint

    def finalize_late(self, step):
        time.sleep(2.0 if step else 0.0)
        return finalize(self, step)

    ocp.CheckpointManager._finalize_checkpoint = finalize_late


def endless_save_of_20() -> None:
    """All of the checkpoint is written, and Orbax never renames its folder."""
    finalize = AtomicRenameTemporaryPath.finalize

    async def finalize_never(self):
        if self.get_final().name == "20":
            wait_to_be_killed()
        await finalize(self)

    AtomicRenameTemporaryPath.finalize = finalize_never


def never_ends() -> None:
    """The run waits before its export, so that no kill comes too late. A slow disk costs no line of its logs."""
    writer._SECONDS_AT_A_SAVE = LIMIT_SECONDS
    export.write = wait_to_be_killed


def stops_only() -> None:
    """The run takes at most 30 steps more, then it waits for the signal that stops it, if need be before each step.

    With several processes, JAX catches the signal and takes about a second to tell all of them: steps become slow.
    """
    make, put, steps, signals = train.stop_signal, loop.put_batches, itertools.count(1), []

    def stop_signal():
        signals.append(make())
        return signals[0]

    def put_later(batches, mesh):
        if next(steps) > 30:
            while signals and not signals[0]():
                time.sleep(0.01)
            time.sleep(0.0 if signals else 2.0 * PATIENCE)
        return put(batches, mesh)

    train.stop_signal, loop.put_batches = stop_signal, put_later


def not_finite() -> None:
    """The loss of step 12 is not finite, and the save of step 10 takes longer than that."""
    _slow_save()
    put, steps = loop.put_batches, itertools.count(1)

    def put_poisoned(batches, mesh):
        if next(steps) == 12:
            batches = [batch | {"mlm_weights_BK": batch["mlm_weights_BK"] * np.float32("nan")} for batch in batches]
        return put(batches, mesh)

    loop.put_batches = put_poisoned


def endless_evaluation() -> None:
    """The held-out rows never end, and process 1 gets SIGTERM at the first batch of them."""
    batches = evaluation._TaskEvaluator._batches

    def endless(self):
        if jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        count = 0
        try:
            for batch in itertools.cycle(list(batches(self))):
                count += 1
                yield batch
        finally:
            print(f"evaluated batches: {count}", file=sys.stderr)

    evaluation._TaskEvaluator._batches = endless


def private_workdir() -> None:
    """Each process has a workdir on its own disk, and no process waits for what it does not see."""
    start._LOOKS = 1
    sys.argv.append(f"--workdir={os.environ['FOLDER']}/{os.environ['JAX_PROCESS_ID']}")


def late_record() -> None:
    """Process 1 does not see the record of the run at first, as a client of NFS may."""
    exists, looks = storage.exists, itertools.count()

    def exists_later(path):
        if str(path).endswith("config.json") and os.environ["JAX_PROCESS_ID"] == "1" and next(looks) < 2:
            return False
        return exists(path)

    storage.exists = exists_later


# {state: (owner, name, number of the call) of what a run calls in it}
HANGS = {
    "restoring": (Checkpoints, "restore_newest", 1),
    "training": (MetricsQueue, "take", 5),
    "evaluating": (Evaluator, "__call__", 1),
    "saving": (Checkpoints, "settle", 2),  # the trial settles once
    "exporting": (export, "write", 1),
}
FAULTS = {
    "private_workdir": private_workdir,
    "late_record": late_record,
    "endless_evaluation": endless_evaluation,
    "not_finite": not_finite,
    "endless_save_of_20": endless_save_of_20,
    "never_ends": never_ends,
    "stops_only": stops_only,
    **{f"hang_{state}": functools.partial(_hang_at, *place) for state, place in HANGS.items()},
}

if __name__ == "__main__":
    fault = sys.argv.pop(1)
    start.Watchdog = KnownWatchdog
    FAULTS[fault]()
    arguments = sys.argv[1:]
    sys.exit(processes.leave(lambda: command_line.exit_code_of(lambda: train.main(arguments))))
