"""Restore the heartbeat after a refused start, so that a mistyped flag does not make a run look failed."""

import contextlib

from bertjax.runtime import storage
from bertjax.runtime.errors import RunFailed, Unavailable, UserError
from bertjax.training.run.workdir import Workdir


class Refusal:
    """Restores `heartbeat.json` if a start ends with bad input before it is accepted.

    A start writes its heartbeat as soon as it holds the lock, because opening the data may take an hour. If the start
    is refused, the heartbeat of the previous start is written back. If there was no run, both `heartbeat.json` and
    `elapsed.json` are removed.

    Args:
      files: the workdir, locked by the caller.
      active: False in processes that do not write.
    """

    def __init__(self, files: Workdir, active: bool):
        self._files, self._active = files, active
        self._heartbeat: bytes | None = None

    def __enter__(self) -> "Refusal":
        if self._active and storage.exists(self._files.heartbeat):
            self._heartbeat = storage.read_bytes(self._files.heartbeat)
        return self

    def accept(self) -> None:
        """Accept the start: later errors belong to the run and stay in its heartbeat."""
        self._active = False

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        # An outage or a failed run is not a refusal: `bertjax status` must show it.
        if not (self._active and isinstance(error, UserError)) or isinstance(error, RunFailed | Unavailable):
            return
        with contextlib.suppress(storage.StorageError, UserError), storage.storage_errors(self._files.root):
            if self._heartbeat is not None:
                storage.write_bytes(self._files.heartbeat, self._heartbeat)
            else:
                self._files.heartbeat.unlink(missing_ok=True)
            if not storage.exists(self._files.config):
                self._files.elapsed.unlink(missing_ok=True)
