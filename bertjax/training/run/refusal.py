"""What a start that is refused leaves behind: the files as they were."""

import contextlib

from bertjax import storage
from bertjax.errors import RunFailed, Unavailable, UserError
from bertjax.training.run.workdir import Workdir


class Refusal:
    """Takes back the signs of life of a start that ends with bad input before it is accepted.

    A start writes `heartbeat.json` as soon as it holds the lock, since it may need an hour to open its data. A mistyped
    flag must not make a run that has finished look failed: the file of the earlier start is written again. Without a
    run, `elapsed.json` goes as well.

    Args:
      files: the workdir, locked by the caller.
      active: False in processes that write nothing.
    """

    def __init__(self, files: Workdir, active: bool):
        self._files, self._active = files, active
        self._heartbeat: bytes | None = None

    def __enter__(self) -> "Refusal":
        if self._active and storage.exists(self._files.heartbeat):
            self._heartbeat = storage.read_bytes(self._files.heartbeat)
        return self

    def accept(self) -> None:
        """From now on, an error is one of the run."""
        self._active = False

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        if not (self._active and isinstance(error, UserError)) or isinstance(error, RunFailed | Unavailable):
            return
        with contextlib.suppress(storage.StorageError, UserError), storage.storage_errors(self._files.root):
            if self._heartbeat is not None:
                storage.write_bytes(self._files.heartbeat, self._heartbeat)
            else:
                self._files.heartbeat.unlink(missing_ok=True)
            if not storage.exists(self._files.config):
                self._files.elapsed.unlink(missing_ok=True)
