"""A lock for object stores, which have none: the holder keeps changing a file to show that it is alive."""

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Iterator

from etils import epath

from bertjax.errors import Busy

# Processes that take the lock at the same moment see each other after this share of `seconds`.
_SETTLING_SHARE = 0.1

log = logging.getLogger(__name__)


@contextlib.contextmanager
def lease(path: epath.Path, seconds: float = 20.0) -> Iterator[None]:
    """Hold a lock file for this process. A file that does not change for longer than `seconds` is of a dead process.

    Clocks of different machines are not compared: a process that finds the file waits and checks whether it changes.

    Raises:
      Busy: a live process holds the file.
    """
    owner, in_use = uuid.uuid4().hex, Busy(f"workdir {path.parent} is in use by a live run; wait for it")
    if before := _read(path):
        log.info("%s has the lock of another run; waiting %.0f s to see if it is alive", path.parent, 1.5 * seconds)
        time.sleep(1.5 * seconds)
        if _read(path) not in ("", before):
            raise in_use
    path.write_text(f"{owner} 0")
    time.sleep(_SETTLING_SHARE * seconds)
    if not _read(path).startswith(owner):
        raise in_use
    ended = threading.Event()
    keeper = threading.Thread(target=_keep, args=(path, owner, seconds / 2, ended), name="lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()
        with contextlib.suppress(OSError):
            path.unlink()


def _keep(path: epath.Path, owner: str, seconds: float, ended: threading.Event) -> None:
    beats = 0
    while not ended.wait(seconds):
        beats += 1
        with contextlib.suppress(OSError):  # the next write may succeed
            path.write_text(f"{owner} {beats}")


def _read(path: epath.Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
