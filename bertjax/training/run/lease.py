"""A lock for object stores, which have no file locks: numbered marks, where the newest mark holds the lock.

A process takes the lock by creating the mark with the next number. S3 and Google Cloud Storage can create an object
only if it does not exist, so only one process succeeds. The holder keeps rewriting its mark to show that it is alive.
It has lost the lock if it finds a newer mark or cannot rewrite its own for `seconds`. The number is a fencing token
(Kleppmann, "How to do distributed locking", 2016): it only grows, because the newest mark is never deleted.
"""

import contextlib
import functools
import logging
import re
import threading
import time
import uuid
from collections.abc import Iterator

from etils import epath

from bertjax.runtime import storage
from bertjax.runtime.errors import Busy, Unavailable

# On a store without conditional creation, wait for this share of `seconds`, until processes that take the lock at the
# same moment see each other's marks.
_SETTLING_SHARE = 0.1
_RENEWALS = 6  # within `seconds`
_RELEASED = "released"

log = logging.getLogger(__name__)


class Lease:
    """A lock that this process holds until it is lost or released.

    Args:
      path: prefix of the marks `<path>-00001`, ...
      number: number of this process's mark.
      owner: unique prefix of that mark's content.
      seconds: time without a renewal after which the lock counts as lost.
    """

    def __init__(self, path: epath.Path, number: int, owner: str, seconds: float):
        self._path, self._number, self._owner, self._seconds = path, number, owner, seconds
        self._renewed = time.monotonic()
        self._taken = self._ended = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise unless this process still holds the lock, as far as its thread knows; does no I/O.

        Raises:
          Unavailable: another process has it, or it could not be renewed for too long.
        """
        if self._taken:
            raise Unavailable(
                f"another run has taken over {self._path.parent}, since this one gave no sign of life for "
                f"{self._seconds:.0f} s; this one stops, and nothing is saved after its last checkpoint"
            )
        if time.monotonic() - self._renewed > self._seconds:
            raise Unavailable(
                f"the lock of {self._path.parent} could not be renewed for {self._seconds:.0f} s; run the same command "
                "again later, to resume from the newest checkpoint"
            )

    def verify(self) -> None:
        """Raise unless this process still holds the lock, after reading the marks.

        Raises:
          Unavailable: see `check`.
        """
        with contextlib.suppress(storage.StorageError):  # the thread keeps trying, and `check` limits its time
            with storage.storage_errors(self._path):
                self._look()
        self.check()

    def release(self) -> None:
        """Release the lock, so that others can take it at once. Marks of other processes stay."""
        self._ended = True
        self._wake.set()
        self._thread.join(self._seconds)
        with contextlib.suppress(storage.StorageError), storage.storage_errors(self._path):
            if not self._taken:
                storage.write_text(_mark(self._path, self._number), _RELEASED)

    def _keep(self) -> None:
        beats, failures = 0, 0
        while not self._wake.wait(self._seconds / _RENEWALS) and not self._taken:
            beats += 1
            started = time.monotonic()
            try:
                with storage.storage_errors(self._path):
                    self._look()
                    if not (self._taken or self._ended):
                        storage.write_text(_mark(self._path, self._number), f"{self._owner} {beats}")
                        # The time before the write, because others count from a moment after it.
                        self._renewed, failures = started, 0
            except Exception as error:  # whatever it is, the thread must live as long as the run
                failures += 1
                if failures == 1:
                    log.warning("the lock of %s cannot be renewed (%s); trying again", self._path.parent, error)

    def _look(self) -> None:
        _, content = _newest(self._path)
        self._taken = self._taken or not content.startswith(self._owner)


@contextlib.contextmanager
def lease(path: epath.Path, seconds: float = 60.0) -> Iterator[Lease]:
    """Hold the lock of a folder. If a mark does not change for 1.5 x `seconds`, its process counts as dead.

    Clocks of different machines are never compared. A process that finds a mark compares its modification time with
    that of a new file, both from the store's clock, or waits and checks whether the mark changes.

    Raises:
      Busy: a live process holds the lock.
      StorageError: the folder cannot be read or written.
    """
    held = Lease(path, *_claim(path, seconds), seconds)
    try:
        yield held
    finally:
        held.release()


def _claim(path: epath.Path, seconds: float) -> tuple[int, str]:
    """Create the next mark, and return its number and owner."""
    owner, in_use = uuid.uuid4().hex, Busy(f"workdir {path.parent} is in use by a live run; wait for it")
    # 1. Is the holder of the newest mark alive? If the store cannot tell the age, watch the mark for a while.
    number, content = storage.retry(lambda: _newest(path), path)
    if content not in ("", _RELEASED) and not _age(path, number) > 1.5 * seconds:
        log.info("%s has the lock of another run; waiting %.0f s to see if it is alive", path.parent, 1.5 * seconds)
        time.sleep(1.5 * seconds)
        if storage.retry(lambda: _newest(path), path) not in ((number, content), (number, _RELEASED)):
            raise in_use
    # 2. Create the next mark. Conditional creation lets only one process succeed.
    own = _mark(path, number + 1)
    first = f"{owner} 0".encode()
    # A retry may find the mark that its own first attempt wrote, although the store reported an error.
    if not storage.retry(lambda: storage.create(own, first), own) and _content(own) != first.decode():
        raise in_use
    # 3. Some stores ignore the condition. There, the last writer wins, after all writers have had time to write.
    if storage.retry(lambda: storage.create(own, first), own):
        log.info("%s cannot create a file only if there is none; waiting for other runs that start now", path.parent)
        time.sleep(_SETTLING_SHARE * seconds)
    if storage.retry(lambda: _newest(path), path) != (number + 1, first.decode()):
        raise in_use
    # 4. Delete older marks. The newest one must stay, or numbers would start again.
    for earlier in _numbers(path):
        if earlier <= number:
            with contextlib.suppress(storage.StorageError), storage.storage_errors(path):
                _mark(path, earlier).unlink(missing_ok=True)
    return number + 1, owner


def _age(path: epath.Path, number: int) -> float:
    """Return the seconds since a mark was written, by the store's clock; 0 if unknown."""
    probe = path.with_name(f"{path.name}-probe-{uuid.uuid4().hex}")
    try:
        storage.retry(lambda: storage.create(probe, b""), probe)
        now, written = (
            storage.retry(functools.partial(storage.modified, file), file) for file in (probe, _mark(path, number))
        )
    except storage.MissingFile:
        return 0.0
    finally:
        with contextlib.suppress(storage.StorageError), storage.storage_errors(probe):
            probe.unlink(missing_ok=True)
    return 0.0 if now is None or written is None else now - written


def _mark(path: epath.Path, number: int) -> epath.Path:
    return path.with_name(f"{path.name}-{number:05}")


def _numbers(path: epath.Path) -> list[int]:
    marks = (re.fullmatch(rf"{re.escape(path.name)}-(\d{{5}})", name) for name in storage.list_names(path.parent))
    return [int(mark[1]) for mark in marks if mark]


def _newest(path: epath.Path) -> tuple[int, str]:
    """Return the newest mark's number and content, or (0, "") if there are no marks."""
    number = max(_numbers(path), default=0)
    return number, _content(_mark(path, number)) if number else ""


def _content(mark: epath.Path) -> str:
    return storage.read_now(mark).decode()
