"""Atomic files on disks and object stores, retries, and errors of both in one class.

A file or folder is written as a draft next to its destination and renamed when complete, so a killed process leaves the
old version and a draft. An object store needs no draft: an object appears once all of it is uploaded.
"""

import contextlib
import errno
import glob
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, TypeVar, cast

import tenacity
from etils import epath
from etils.epath.backend import fsspec_backend
from fsspec.core import url_to_fs

from bertjax.runtime.errors import RunFailed, Unavailable, UserError

T = TypeVar("T")

# Bytes of a file's name before what drafts, stores and folders of runs add to it. File systems allow 255.
LONGEST_NAME = 220

# Waits between attempts grow from 0.5 s to 16 s and take at most a minute together. They are random, so that many hosts
# that fail at the same moment do not retry at the same moment (exponential backoff with jitter).
_ATTEMPTS = 8
_WAIT = tenacity.wait_random_exponential(multiplier=0.5, max=16)

# Errors from which a network, an NFS server or a disk may recover. s3fs reports 500 as EREMOTEIO and 503 as EBUSY.
_TRANSIENT = {
    getattr(errno, name)
    for name in (
        "EAGAIN EBUSY ECONNABORTED ECONNREFUSED ECONNRESET EHOSTDOWN EHOSTUNREACH EINTR EIO ENETDOWN ENETRESET "
        "ENETUNREACH EPIPE EREMOTEIO ESTALE ETIMEDOUT"
    ).split()
}
# Object store libraries often leave out the errno.
_ERRNO_OF_CLASS = {
    FileNotFoundError: errno.ENOENT,
    PermissionError: errno.EACCES,
    FileExistsError: errno.EEXIST,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
    ConnectionError: errno.ECONNRESET,
    TimeoutError: errno.ETIMEDOUT,
    # Wrong addresses, missing packages and bugs are not network failures: a retry would not help.
    **dict.fromkeys((ValueError, TypeError, LookupError, AttributeError, NotImplementedError), errno.EINVAL),
    ImportError: errno.EINVAL,
}
_ERRNO_OF_STATUS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 408: errno.ETIMEDOUT, 429: errno.EAGAIN}
# `<class>: <message>` of errors without a status that mean missing rights, from google.auth, botocore and gcsfs (403).
_MISSING_RIGHTS = re.compile(r"\w*(Credentials|Reauth)\w*:|\w+: Forbidden|.*(invalid_grant|Anonymous caller)")
# Packages in which unknown errors are network or server failures.
_NETWORK_PACKAGES = ("aiohttp", "botocore", "gcsfs", "google.api_core", "google.auth", "httpx", "requests", "urllib3")


class StorageError(OSError):
    """A disk, an object store, or its client library failed."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"

    @property
    def transient(self) -> bool:
        """Whether the same action may succeed later; not if rights, space or the file are missing."""
        return self.errno in _TRANSIENT


class MissingFile(StorageError, FileNotFoundError):
    """A file or folder does not exist."""


def may_pass(error: BaseException) -> bool:
    """Return whether the same command may succeed later after this error."""
    return isinstance(error, Unavailable) or (isinstance(error, StorageError) and error.transient)


def retry(action: Callable[[], T], path: epath.PathLike) -> T:
    """Run an action on `path`, and repeat it with growing waits after transient errors.

    Raises:
      Unavailable: all attempts had transient errors.
      StorageError: another error.
    """
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, StorageError) and error.transient),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=_WAIT,
        reraise=True,
    )

    def guarded() -> T:
        with storage_errors(path):
            return action()

    try:
        return attempts(guarded)
    except StorageError as error:
        if error.transient:
            raise Unavailable(f"{error} after {_ATTEMPTS} attempts; run the same command again later") from error
        raise


@contextlib.contextmanager
def storage_errors(path: epath.PathLike) -> Iterator[None]:
    """Convert errors about `path` from a file system or fsspec to `StorageError`."""
    try:
        yield
    except (UserError, StorageError):
        raise
    except Exception as error:
        # On a disk, other errors are bugs. Libraries for object stores raise classes of their own.
        if not is_remote(path) and not isinstance(error, OSError):
            raise
        number = _errno_of(error)
        kind = MissingFile if number == errno.ENOENT else StorageError
        raise kind(number, reason_of(error), os.fspath(path)) from error


def user_error(error: Exception, what: str, remedy: str) -> UserError:
    """Convert a storage error to the error that ends a command, which determines the exit code.

    Args:
      what: what failed, the start of the message.
      remedy: end of the message, unless a retry or free disk space is the remedy.

    Returns:
      Unavailable for transient errors, RunFailed if the disk is full, UserError otherwise.
    """
    number = error.errno if isinstance(error, StorageError) else _errno_of(error, unknown=errno.EINVAL)
    message = f"{what}: {reason_of(error)}"
    if number in _TRANSIENT:
        return Unavailable(f"{message}; run the same command again later")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return RunFailed(f"{message}; free disk space, then run the same command again")
    return UserError(f"{message}; {remedy}" if remedy else message)


def _errno_of(error: Exception, unknown: int = errno.EIO) -> int:
    """Return the errno of a file system error (local or fsspec).

    Args:
      unknown: errno to use if the error has no errno, no HTTP status, and no known class or package.
    """
    # `socket.gaierror`, a host name that cannot be resolved, is an OSError with a negative errno.
    if isinstance(error, OSError) and (number := error.errno or 0) > 0:
        return number
    holders = (error, getattr(error, "response", None))
    fields = (getattr(holder, name, None) for holder in holders for name in ("status", "code", "status_code"))
    status = next((int(field) for field in map(str, fields) if field.isdecimal()), None)
    if status is not None:
        return errno.EIO if status >= 500 else _ERRNO_OF_STATUS.get(status, errno.EINVAL)
    if _MISSING_RIGHTS.match(f"{type(error).__name__}: {error}"):
        return errno.EACCES
    for kind, number in _ERRNO_OF_CLASS.items():
        if isinstance(error, kind):
            return number
    return errno.EIO if type(error).__module__.startswith(_NETWORK_PACKAGES) else unknown


def reason_of(error: BaseException) -> str:
    """Return an error's message and its causes' messages in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return f"{reason} ({reason_of(error.__cause__)})" if error.__cause__ else reason


def is_remote(path: epath.PathLike) -> bool:
    """Return whether a path is a URL (`gs://...`). Objects cannot be appended to, renamed or locked."""
    return "://" in os.fspath(path)


def place_of(path: epath.PathLike, reads_remote: bool = True) -> epath.Path:
    """Return the place that a path or URL names; ~ is the home folder.

    Args:
      path: what somebody has typed.
      reads_remote: whether the reader opens files of an object store (`gs://...`).

    Raises:
      UserError: it is a URL that cannot be opened.
    """
    name = os.path.expanduser(os.fspath(path))
    try:
        if reads_remote or not is_remote(name):
            return epath.Path(name)
    except KeyError:  # no library of epath knows the scheme
        pass
    is_local = name.startswith("file://")
    remedy = f"name {name.removeprefix('file://')}" if is_local else "download it, and name the file or folder"
    raise UserError(f"{name} is a URL, which is not opened here; {remedy}")


def split_name(name: str | os.PathLike) -> tuple[str, str]:
    """Split `RUN@STEP` into path and step; the step is empty if the name has none."""
    name = os.path.expanduser(os.fspath(name))
    # The last @, since earlier ones may be part of a folder's name.
    path, at, step = name.rpartition("@")
    is_step = at and "/" not in step and not os.path.exists(name)  # whose name may contain @
    return (path, step) if is_step else (name, "")


def short_name(name: str, most: int = LONGEST_NAME) -> str:
    """Return the start of a file's name, of at most so many bytes: a letter has up to four."""
    while len(name.encode(errors="surrogateescape")) > most:  # which stands for bytes that this locale does not decode
        name = name[:-1]
    return name


def forget_listings(path: epath.PathLike) -> None:
    """Drop epath's cached listings of an object store, since other processes may have changed it."""
    if is_remote(path):
        fsspec_backend.fs(path).invalidate_cache()


def write_text(path: epath.PathLike, text: str) -> None:
    """Write a local or remote UTF-8 file atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: epath.PathLike, content: bytes) -> None:
    """Write a local or remote file atomically.

    Raises:
      StorageError: the file cannot be written; an existing one is unchanged.
    """
    with storage_errors(path):
        if is_remote(path):
            epath.Path(path).write_bytes(content)
            return
        with whole_file(Path(path)) as file:
            file.write(content)


def read_bytes(path: epath.PathLike) -> bytes:
    """Read a local or remote file.

    Raises:
      Unavailable: it could not be read for a minute.
      MissingFile: it does not exist.
      StorageError: it cannot be read.
    """
    return retry(epath.Path(path).read_bytes, path)


def exists(path: epath.PathLike) -> bool:
    """Return whether a local or remote file or folder exists; see `read_bytes` for errors."""

    def look() -> bool:
        if is_remote(path):
            return epath.Path(path).exists()
        try:
            os.stat(path)  # `os.path.exists` takes every error for absence, such as a stale handle of NFS
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    return retry(look, path)


def names_in(folder: epath.PathLike) -> list[str]:
    """Return the current names in a local or remote folder, sorted; empty if the folder does not exist.

    Raises:
      Unavailable: it could not be listed for a minute.
      StorageError: it cannot be listed.
    """
    return retry(lambda: list_names(folder), folder)


def list_names(folder: epath.PathLike) -> list[str]:
    """Like `names_in`, but with a single attempt; raises the file system's own errors."""
    try:
        if not is_remote(folder):
            return sorted(os.listdir(folder))
        store, place = url_to_fs(os.fspath(folder))
        store.invalidate_cache()  # gcsfs caches listings without expiry
        return sorted(PurePosixPath(path).name for path in store.ls(place, detail=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def create(path: epath.PathLike, content: bytes) -> bool:
    """Write a remote file unless it exists; atomic on stores with conditional writes (S3, Google Cloud Storage).

    Returns:
      Whether the file was written.

    Raises:
      StorageError: it cannot be written.
    """
    with storage_errors(path):
        store, place = url_to_fs(os.fspath(path))
        try:
            store.pipe_file(place, content, mode="create")
        except FileExistsError:
            return False
        return True


def read_now(path: epath.PathLike) -> bytes:
    """Return a remote file's current content, without caches; empty if it does not exist."""
    with storage_errors(path):
        store, place = url_to_fs(os.fspath(path))
        store.invalidate_cache()
        try:
            return cast(bytes, store.cat_file(place))
        except FileNotFoundError:
            return b""


def modified(path: epath.PathLike) -> float | None:
    """Return when a remote file was written, in seconds by the store's clock; None if unknown."""
    with storage_errors(path):
        store, place = url_to_fs(os.fspath(path))
        store.invalidate_cache()
        try:
            return store.modified(place).timestamp()
        except (NotImplementedError, AttributeError, KeyError):
            return None


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a draft of a local file; it replaces `path` when the block ends, unless the block fails.

    After a power failure, `path` is the old file or the complete new one. It keeps the mode of the old file, and a link
    stays: the file that it names is replaced. A device, a pipe or an open file (`/dev/fd/3`) is written to instead, and
    so is a file that cannot be replaced: its folder is closed to this user, or it is mounted alone, as in a container.
    """
    with storage_errors(path):
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            mode = None
        is_plain = mode is not None and stat.S_ISREG(mode) and not _is_descriptor(path)
        is_replaced = mode is None or (is_plain and _may_be_replaced(path))
        path = Path(os.path.realpath(path)) if is_replaced else path
        draft = _draft(path) if is_replaced else path
        file = open(draft, "wb") if is_replaced or is_plain else _opened(path)
    if not is_replaced:
        with file:
            yield file
        return
    # Flush before the rename: file systems may put the new name on disk before the content.
    try:
        with file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        flush(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _may_be_replaced(path: Path) -> bool:
    return os.access(Path(os.path.realpath(path)).parent, os.W_OK) and not os.path.ismount(path)


def _opened(path: Path) -> IO[bytes]:
    """Open a device or a pipe; of an open file of this process, its descriptor, whose offset others share."""
    number = Path(os.path.realpath(path.parent), path.name)
    while _is_descriptor(path) and not number.name.isdecimal():  # /dev/stdout is a link to one
        number = number.parent / os.readlink(number)
    if number.name.isdecimal() and os.path.realpath(number.parent) == os.path.realpath("/proc/self/fd"):
        return os.fdopen(os.dup(int(number.name)), "wb")
    return open(path, "ab")


def _is_descriptor(path: Path) -> bool:
    """Return whether an existing path is an open file of a process: `/dev/fd/3`, `/dev/stdout`, `>(gzip > FILE)`."""
    while not re.fullmatch(r"/proc/.*/fd|/dev/fd", folder := os.path.realpath(path.parent)):
        if not path.is_symlink():
            return False
        path = Path(folder, os.readlink(path))
    return True


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Create an empty local folder; it becomes `path` when the block ends without an error.

    `path` must not exist, or be an empty folder. An empty folder is filled in place, since it may be the current
    folder, a link or a mount point; if the block fails, it is emptied.
    """
    if path.is_dir() and not any(path.iterdir()):
        try:
            yield path
            flush_folder(path)
        except BaseException:
            for entry in path.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            raise
        return
    draft = _draft(path)
    draft.mkdir(parents=True)
    try:
        yield draft
        publish(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def publish(folder: Path, path: Path) -> None:
    """Flush a complete local folder to disk and rename it to `path`, so that `path` survives a power failure."""
    flush_folder(folder)
    os.rename(folder, path)
    flush(path.parent)


def flush_folder(folder: Path) -> None:
    """Flush all files in a local folder to disk."""
    for path in (*folder.rglob("*"), folder):
        flush(path)


def remove_drafts(folder: Path, name: str = "") -> None:
    """Remove drafts that killed processes left in a folder, or only drafts of one name; the caller holds a lock."""
    for draft in folder.glob(f".{glob.escape(short_name(name)) or '*'}.*.draft"):
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)


def _draft(path: Path) -> Path:
    """Return a unique draft path, so that two processes that write the same file do not mix their content."""
    return path.with_name(f".{short_name(path.name)}.{uuid.uuid4().hex[:12]}.draft")


def flush(path: Path) -> None:
    """Flush a file, or a folder's list of files, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
