"""One start of a run: its lock, heartbeat, watchdog, log writer and clock."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from bertjax.config.config import Config
from bertjax.runtime import command_line, storage
from bertjax.runtime.errors import UserError, reason
from bertjax.training.parallel import processes
from bertjax.training.run import record, versions
from bertjax.training.run.goodput import Elapsed
from bertjax.training.run.lease import Lease
from bertjax.training.run.notify import Notifier, end_of, is_refusal, parsed
from bertjax.training.run.watchdog import Heartbeat, Watchdog
from bertjax.training.run.workdir import Workdir
from bertjax.training.run.writer import LogWriter


@contextlib.contextmanager
def restoring_heartbeat(files: Workdir, is_writer: bool, accepted: threading.Event) -> Iterator[None]:
    """Restore `heartbeat.json` if a start ends with bad input before it is accepted.

    A start writes its heartbeat as soon as it holds the lock, because opening the data may take an hour. If the start
    is refused, the heartbeat of the previous start is written back. If there was no run, both `heartbeat.json` and
    `elapsed.json` are removed.

    Args:
      files: the workdir, locked by the caller.
      is_writer: whether this process writes.
      accepted: set once the start is accepted.
    """
    before = storage.read_bytes(files.heartbeat) if is_writer and storage.exists(files.heartbeat) else None
    try:
        yield
    except UserError as error:
        # An outage or a failed run is not a refusal: `bertjax status` must show it.
        if is_writer and not accepted.is_set() and is_refusal(error):
            with contextlib.suppress(storage.StorageError, UserError), storage.storage_errors(files.root):
                if before is not None:
                    storage.write_bytes(files.heartbeat, before)
                else:
                    files.heartbeat.unlink(missing_ok=True)
                if not storage.exists(files.config):
                    files.elapsed.unlink(missing_ok=True)
        raise


@dataclasses.dataclass(frozen=True)
class Session:
    """An open start of a run, in each of its processes.

    Attributes:
      files: the workdir, locked.
      before: record of the start before this one; None at the first.
      lock: lock of the workdir, if this process holds one that can be lost.
      writer: writes the logs.
      watchdog: limits and reports each activity.
      elapsed: wall time over all starts.
      accepted: set once the start is accepted, see `restoring_heartbeat`.
      closing: closes what is opened later, such as trackers.
    """

    files: Workdir
    before: record.RunRecord | None
    lock: Lease | None
    writer: LogWriter
    watchdog: Watchdog
    elapsed: Elapsed
    accepted: threading.Event
    closing: contextlib.ExitStack

    def accept(self) -> None:
        """Accept the start: from now on, errors belong to the run."""
        self.accepted.set()
        if self.before is not None:
            self.writer.add(self.elapsed)

    def verify_lock(self) -> None:
        """Raise Unavailable in all processes if the writer has lost its lock, by reading the lock file."""
        processes.on_writer(self.lock.verify if self.lock else lambda: None)

    def end(self, state: str, exit_code: int, step: int) -> None:
        """Report the end of the run in the heartbeat and as an event."""
        self.watchdog.end(state, exit_code)
        self.watchdog.notify(state, step)


@contextlib.contextmanager
def opened(
    config: Config, workdir: str | Path | epath.Path, longer: bool, other_versions: bool, on_event: str
) -> Iterator[Session]:
    """Lock the workdir and start the heartbeat. If the session ends with an error, the heartbeat records it.

    Args:
      config: the configuration as the user wrote it.
      workdir: the run's folder.
      longer: whether the run must exist already, to be continued with more steps.
      other_versions: allow other versions of computing libraries than at the last start.
      on_event: command to run at each event, see `Notifier`.

    Raises:
      UserError: the workdir cannot be used, or was written with other versions.
    """
    files, is_writer, accepted = Workdir.at(workdir), processes.is_writer(), threading.Event()
    hang_timeout, _ = config.runtime.hang_timeout, parsed(on_event)  # in every process, so that all end alike
    with (
        Notifier(on_event if is_writer else "", str(files.root), accepted) as notify,
        Watchdog(hang_timeout, Heartbeat(files.heartbeat, hang_timeout), notify) as watchdog,
        contextlib.ExitStack() as closing,
        processes.noticing_lost_peers(),
    ):
        lock = processes.together(lambda: claim(files, longer, closing) if is_writer else None)
        versions.check(files, other_versions, versions.hashes(versions.foreign_modules(config.training_kinds)))
        processes.together(closing.enter_context, restoring_heartbeat(files, is_writer, accepted))
        writer = closing.enter_context(LogWriter(is_writer, lock))
        closing.push(
            lambda _, error, __: (
                watchdog.end(end_of(error), command_line.code_for(error), reason(error)) if error else None
            )
        )
        writer.add(watchdog.heartbeat)  # now: opening the data may take longer than a launcher waits for a heartbeat
        elapsed = processes.together(Elapsed, files.elapsed)
        before = record.shared_record(files)
        if before is None:
            writer.add(elapsed)
        yield Session(files, before, lock, writer, watchdog, elapsed, accepted, closing)


def claim(files: Workdir, longer: bool, closing: contextlib.ExitStack) -> Lease | None:
    """Lock a workdir until `closing` closes; see `Workdir.locked`.

    Raises:
      UserError: the path cannot hold checkpoints, has some without a record, or has no run although `longer` is set.
    """
    files.check_checkpoints()
    lock = closing.enter_context(files.locked())
    if not storage.exists(files.config):
        if saved := files.saved_steps():  # any settings would continue it: only the record has those of the run
            raise UserError(
                f"workdir {files.root} has checkpoint {saved[-1]} and no {files.config.name}; restore that file from a "
                "copy, or use another --workdir"
            )
        if longer:
            raise UserError(f"--longer finds no run in {files.root}; name the run to continue with --workdir")
    return lock
