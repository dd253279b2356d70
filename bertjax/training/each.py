"""Several runs of one command, one after the other: seeds, folds, and the combinations of a sweep.

Several processes, also on several machines, may work on one folder. Each skips the runs that another one is training.
"""

import dataclasses
import gc
import json
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from etils import epath

from bertjax.config.config import Config, to_dict
from bertjax.runtime import platform, storage
from bertjax.runtime.errors import Busy, RunFailed, Unavailable, UserError, reason, shorten
from bertjax.training.run import record
from bertjax.training.run.checkpoint import NotSaved
from bertjax.training.run.watchdog import is_of_device
from bertjax.training.run.workdir import Workdir

_SECONDS_BETWEEN_ROUNDS = 10.0
# Settings that choose what a run reads, and which of it. Runs in which they are equal must read the same.
_READS = ("data", "tasks", "init_from", "init_layers", "model", "stages")


class Trial(NamedTuple):
    """One of several runs.

    Attributes:
      folder: workdir, relative to the folder of all runs.
      config: the configuration.
      name: reference curve to compare with.
      swept: assignments `a.b=value` of a sweep, in which its runs differ.
    """

    folder: str
    config: Config
    name: str = ""
    swept: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Summary:
    """The result of a run.

    Attributes:
      step: steps done.
      finished: whether all steps are done.
      figures: metrics and totals, as in `summary.json`; empty unless the run is finished.
      workdir: the run's folder; an `etils.epath` path for a URL.
      pad_id: the tokenizer's padding id.
    """

    step: int
    finished: bool
    figures: dict[str, Any]
    workdir: Path | epath.Path
    pad_id: int = 0


@dataclasses.dataclass
class Results:
    """What several runs came to.

    Attributes:
      figures: {folder: content of `summary.json`} of the finished runs, in order.
      failures: {folder: why the run failed}.
      error: the last failure; None if there was none.
      is_stopped: whether the command was stopped before all runs had ended.
    """

    figures: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    error: Exception | None = None
    is_stopped: bool = False


def run_each(
    root: epath.Path,
    trials: Sequence[Trial],
    train: Callable[[Trial, Workdir, Workdir | None], Summary],
    should_stop: Callable[[], bool],
) -> Results:
    """Train each run in its folder, and compile equal programs once.

    Runs that have finished with the same settings are skipped: exporting them again could take all the time between two
    preemptions. A run that fails, such as a seed that diverges, is a result, and the others continue.

    Args:
      root: folder of the folders; a second call resumes.
      trials: all runs.
      train: trains a run in a workdir; a run that must have read the same is given if there is one.
      should_stop: called between runs; True ends the command.

    Raises:
      UserError: the first run has bad input, or a run reads other data than one with the same settings.
      RunFailed: a run failed in one of several processes, which then no longer agree, or could not save its state.
      OSError: a disk is full or cannot be written.
      Unavailable: storage or a device did not answer for some runs. This does not depend on their settings: the same
        command trains them later.
    """
    results, outages, first_of = Results(), {}, {}
    open_trials, is_waiting = list(trials), False
    with platform.sharing_compiled_programs():
        while open_trials:
            busy = []
            for trial in open_trials:
                files, reads = Workdir(root / trial.folder), _reads(trial.config)
                try:
                    if finished := record.shared_figures(files, trial.config):
                        summary = Summary(finished["steps"], True, finished, files.path)
                    else:
                        print(f"run       {files.root}", flush=True)
                        summary = train(trial, files, first_of.get(reads))
                except Exception as error:
                    if jax.process_count() > 1 or _ends_all(error, trial is trials[0]):
                        raise
                    if isinstance(error, Busy):  # another process holds this workdir's lock
                        busy.append(trial)
                    elif storage.may_pass(error):
                        outages[trial.folder] = reason(error)
                        print(f"{files.root} is left for later: {reason(error)}; the others continue", flush=True)
                    else:
                        why = reason(error)
                        if not isinstance(error, UserError):  # in the user's own code
                            traceback.print_exc()
                            why = f"{type(error).__name__}: {why}"
                        # Their frames hold the state of the run.
                        error.__traceback__ = error.__cause__ = error.__context__ = None
                        print(f"{files.root} failed: {why}; the others continue", flush=True)
                        results.failures[trial.folder], results.error = why, error
                else:
                    if not summary.finished:
                        return dataclasses.replace(results, is_stopped=True)
                    results.figures[trial.folder] = summary.figures
                    first_of.setdefault(reads, files)
                # A run is a web of objects that hold each other, and its state must leave the device before the next.
                gc.collect()
                # After the last run has ended, there is nothing left to stop.
                is_left = trial is not open_trials[-1] or busy or trial.folder in results.failures
                if is_left and should_stop():
                    return dataclasses.replace(results, is_stopped=True)
            if busy and len(busy) == len(open_trials) and not is_waiting:
                is_waiting = True
                print(f"waiting for runs of other processes: {shorten([trial.folder for trial in busy])}", flush=True)
            # Look at them again later: their owners finish them, or die and leave them to this process. Short naps: a
            # signal sets a flag but does not end a `sleep` (PEP 475).
            until = time.monotonic() + _SECONDS_BETWEEN_ROUNDS
            while busy and time.monotonic() < until:
                if should_stop():
                    return dataclasses.replace(results, is_stopped=True)
                time.sleep(0.2)
            open_trials = busy
    if outages:
        folder, why = next(iter(outages.items()))
        raise Unavailable(f"{len(outages)} of {len(trials)} runs could not be trained now, first {folder}: {why}")
    in_order = {trial.folder: results.figures[trial.folder] for trial in trials if trial.folder in results.figures}
    return dataclasses.replace(results, figures=in_order)


def _ends_all(error: Exception, is_first: bool) -> bool:
    """Return whether an error belongs to the machine or to all runs rather than to one of them."""
    if isinstance(error, Busy) or storage.may_pass(error):
        return False
    # A full disk and a broken device belong to the machine: the same command may succeed on another.
    if isinstance(error, OSError | NotSaved | record.OtherData) or is_of_device(error):
        return True
    # In the first run, bad input is most likely a mistake in all of them.
    return is_first and isinstance(error, UserError) and not isinstance(error, RunFailed)


def _reads(config: Config) -> str:
    """Return the settings that choose what a run reads."""
    settings = to_dict(config)
    return json.dumps([settings[part] for part in _READS], sort_keys=True)
