"""Lock files on a disk: one process at a time; the kernel releases the locks of a killed process."""

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from bertjax.runtime.errors import Busy, UserError
from bertjax.runtime.storage import storage_errors


@contextlib.contextmanager
def lock_or_wait(path: Path, notice: str = "") -> Iterator[None]:
    """Hold a local lock file; wait for the process that holds it.

    Args:
      notice: printed on stderr before waiting.
    """
    with _lock_file(path) as lock:
        with storage_errors(path):
            if not _try(lock):
                if notice:
                    print(notice, file=sys.stderr, flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def lock_or_fail(path: Path, busy: str) -> Iterator[None]:
    """Hold a local lock file. Folders that it made are removed at the end if nothing else was written into them.

    Raises:
      Busy: another process holds it; `busy` is the message.
      UserError: the file system has no locks.
    """
    made = [folder for folder in path.parents if not folder.exists()]
    with _lock_file(path) as lock:
        with storage_errors(path):
            # Between opening and locking, the process before may have removed the file together with its folder.
            if not _try(lock) or not path.exists() or not os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                raise Busy(busy)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # such as a folder that somebody has removed, or that is not empty
                if made and os.listdir(path.parent) == [path.name]:
                    path.unlink()
                    for folder in made:
                        folder.rmdir()


def _lock_file(path: Path) -> IO[str]:
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "w")


def _try(lock: IO[str]) -> bool:
    # flock(2), not fcntl(2) locks: those are lost as soon as this process closes any descriptor of the file.
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            kind, mount = file_system_of(lock.name)
            raise UserError(
                f"{lock.name} cannot be locked: the file system at {mount} ({kind}) has no locks ({error.strerror}); "
                "mount it with them (Lustre: -o flock, NFS: a running lock daemon), or use another folder"
            ) from error
        raise
    return True


def file_system_of(path: str | os.PathLike) -> tuple[str, str]:
    """Return the type of the file system under a local path, such as `ext4` or `fuse.gcsfuse`, and its mount point."""
    place = Path(path).absolute()
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:  # not Linux
        return "unknown", "/"
    # /proc/mounts writes spaces as octal escapes (fstab(5)). The longest mount point above the path is the one.
    mounts = [(mount.replace("\\040", " "), kind) for _, mount, kind, *_ in map(str.split, lines)]
    mount, kind = max((one for one in mounts if place.is_relative_to(one[0])), key=lambda one: len(Path(one[0]).parts))
    return kind, mount
