"""A lock where there are none, on an object store: its holder shows that it lives by a mark that keeps changing."""

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Iterator

from etils import epath

from bertjax.errors import Busy

# Claims that are made at the same moment see each other after this long.
_SETTLING_SHARE = 0.1

log = logging.getLogger(__name__)


@contextlib.contextmanager
def lease(path: epath.Path, seconds: float = 20.0) -> Iterator[None]:
    """Holds a file for this process. A mark that does not change for longer than `seconds` is that of a dead process.

    No clock is compared with that of another machine: who finds a mark waits and looks whether it changes.

    Raises:
      Busy: a live process holds it.
    """
    owner, in_use = uuid.uuid4().hex, Busy(f"workdir {path.parent} is in use by a live run; wait for it")
    if before := _read(path):
        log.info("%s holds the mark of another run; looking for %.0f s whether it lives", path.parent, 1.5 * seconds)
        time.sleep(1.5 * seconds)
        if _read(path) not in ("", before):
            raise in_use
    path.write_text(f"{owner} 0")
    time.sleep(_SETTLING_SHARE * seconds)
    if not _read(path).startswith(owner):
        raise in_use
    ended = threading.Event()
    marker = threading.Thread(target=_keep, args=(path, owner, seconds / 2, ended), name="lease", daemon=True)
    marker.start()
    try:
        yield
    finally:
        ended.set()
        marker.join()
        with contextlib.suppress(OSError):
            path.unlink()


def _keep(path: epath.Path, owner: str, seconds: float, ended: threading.Event) -> None:
    beats = 0
    while not ended.wait(seconds):
        beats += 1
        with contextlib.suppress(OSError):  # the next beat may do
            path.write_text(f"{owner} {beats}")


def _read(path: epath.Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
