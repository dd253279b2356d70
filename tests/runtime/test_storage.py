"""Storage: files appear whole or not at all, locks hold between processes, and all failures have one class."""

import errno
import gzip
import os
import socket
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import google.auth.exceptions
import pytest
import requests
import tenacity
from gcsfs import retry

from bertjax.runtime import command_line, locks, storage, untrusted
from bertjax.runtime.errors import Busy, RunFailed, Unavailable, UserError
from bertjax.runtime.storage import StorageError


def _reads_pipe(folder: Path) -> tuple[Path, Callable[[], bytes]]:
    os.mkfifo(folder / "pipe")
    reading = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    return folder / "pipe", lambda: os.read(reading, 100)


def _reads_link(folder: Path) -> tuple[Path, Callable[[], bytes]]:
    (folder / "target").write_text("old")
    (folder / "link").symlink_to("target")
    return folder / "link", (folder / "target").read_bytes


def _reads_substitution(folder: Path) -> tuple[Path, Callable[[], bytes]]:
    reading, writing = os.pipe()
    return Path(f"/dev/fd/{writing}"), lambda: os.read(reading, 100)


def _reads_appended(folder: Path) -> tuple[Path, Callable[[], bytes]]:
    """As of `--out=/dev/fd/3 3>>log`."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, b"old ")
    (folder / "stdout").symlink_to(f"/proc/self/fd/{log}")
    return folder / "stdout", lambda: (folder / "log").read_bytes().removeprefix(b"old ")


def _reads_shared(folder: Path) -> tuple[Path, Callable[[], bytes]]:
    """As of `--out=/dev/stdout > log`: what others write to the same descriptor follows."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    (folder / "stdout").symlink_to(f"/proc/self/fd/{log}")

    def read() -> bytes:
        os.write(log, b" later")
        return (folder / "log").read_bytes().removesuffix(b" later")

    return folder / "stdout", read


def _reads_device(folder: Path) -> tuple[Path, Callable[[], bytes]]:
    if os.geteuid():
        pytest.skip("only root makes devices")
    os.mknod(folder / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    return folder / "null", lambda: b"new"


@pytest.mark.parametrize(
    "node", [_reads_pipe, _reads_link, _reads_substitution, _reads_appended, _reads_shared, _reads_device]
)
def test_what_is_no_plain_file_is_written_to_and_stays(node, tmp_path):
    path, read = node(tmp_path)
    kind, names = os.lstat(path).st_mode, sorted(tmp_path.iterdir())
    storage.write_text(path, "new")
    assert read() == b"new" and (os.lstat(path).st_mode, sorted(tmp_path.iterdir())) == (kind, names)


def test_a_file_in_a_closed_folder_is_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("older")
    number = os.stat(tmp_path / "file").st_ino
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    storage.write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new" and os.stat(tmp_path / "file").st_ino == number


def test_an_error_leaves_the_old_file_and_no_draft(tmp_path):
    path = tmp_path / ("\uac00" * 85)  # 255 bytes, and a draft has a longer name
    path.write_text("old")
    with pytest.raises(KeyError):
        with storage.whole_file(path) as file:
            file.write(b"new")
            raise KeyError
    with pytest.raises(KeyError):
        with storage.whole_folder(tmp_path / "folder"):
            raise KeyError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_file_is_on_disk_before_it_has_its_name_and_its_name_after(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace

    def flush(number):
        calls.append(os.path.basename(os.readlink(f"/proc/self/fd/{number}")))
        fsync(number)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("replace"), replace(*paths)))
    storage.write_text(tmp_path / "file", "new")
    draft, *others = calls
    assert draft.startswith(".file.") and others == ["replace", tmp_path.name]


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.EWOULDBLOCK, Busy, "^in use$"),
        (errno.EACCES, Busy, "^in use$"),
        (errno.ENOLCK, UserError, r"cannot be locked: the file system at /\S* \(\w+\) has no locks \(No locks"),
        (errno.ENOTSUP, UserError, "has no locks .*Lustre: -o flock"),
        (errno.ESTALE, StorageError, "Stale file handle"),
    ],
)
def test_only_a_lock_that_is_held_is_busy(tmp_path, monkeypatch, number, kind, message):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    with pytest.raises(kind, match=message):
        with locks.lock_or_fail(tmp_path / "lock", "in use"):
            pass


def test_a_lock_leaves_no_folder_in_which_nothing_was_written(tmp_path, monkeypatch):
    folder, lock = tmp_path / "run", tmp_path / "run" / ".lock"
    with locks.lock_or_fail(lock, "in use"):
        with pytest.raises(Busy), locks.lock_or_fail(lock, "in use"):
            pass
    assert not folder.exists()
    with locks.lock_or_fail(lock, "in use"):
        (folder / "config.json").touch()
    assert lock.exists()
    (tmp_path / "made by hand").mkdir()
    with locks.lock_or_fail(tmp_path / "made by hand" / ".lock", "in use"):
        pass
    assert (tmp_path / "made by hand").is_dir()
    monkeypatch.setattr(locks, "_try", lambda file: os.unlink(file.name) is None)
    with pytest.raises(Busy), locks.lock_or_fail(lock, "in use"):
        raise AssertionError("it holds a file that another process has removed")


class HttpError(Exception):
    """As libraries for object stores raise it: no OSError, with the status of the answer."""

    def __init__(self, status):
        super().__init__(f"status {status}")
        self.code = status


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (HttpError(429), True),
        (HttpError(500), True),
        (HttpError("503"), True),
        (HttpError(None), True),
        (retry.HttpError({"code": 503, "message": "Backend Error"}), True),
        (retry.HttpError({"code": 401, "message": "Invalid Credentials"}), False),
        (retry.ChecksumError("the content is not what was sent"), True),
        (OSError("Forbidden: https://storage.googleapis.com/...\nno access to the bucket"), False),
        (ValueError("Bad Request: https://storage.googleapis.com/..."), False),
        (aiohttp.ServerDisconnectedError(), True),
        (aiohttp.ClientPayloadError("Response payload is not completed"), True),
        (aiohttp.ClientResponseError(SimpleNamespace(real_url="gs"), (), status=403), False),
        (google.auth.exceptions.RefreshError("the metadata server does not answer"), True),
        (google.auth.exceptions.RefreshError("invalid_grant: Token has been expired or revoked."), False),
        (google.auth.exceptions.TransportError("connection refused"), True),
        (google.auth.exceptions.DefaultCredentialsError("no credentials were found"), False),
        (requests.exceptions.ProxyError(), True),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (OSError(errno.EBUSY, "Please reduce your request rate."), True),
        (ImportError("Please install gcsfs to access Google Storage"), False),
        (TimeoutError(), True),
        (OSError(errno.ESTALE, "Stale file handle"), True),
        (HttpError(400), False),
        (HttpError(403), False),
        (HttpError(404), False),
        (FileNotFoundError("gs://bucket/file"), False),
        (PermissionError(), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
    ],
)
def test_only_errors_that_may_pass_are_retried(error, transient, monkeypatch):
    monkeypatch.setattr(storage, "_WAIT", tenacity.wait_none())
    calls = []

    def action():
        calls.append(1)
        raise error

    with pytest.raises(Unavailable if transient else StorageError, match="^gs://bucket/file: ") as raised:
        storage.retry(action, "gs://bucket/file")
    assert (len(calls) > 1) == transient == (command_line.code_for(raised.value) == command_line.STOPPED)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), Unavailable),
        (aiohttp.ServerDisconnectedError(), Unavailable),
        (requests.exceptions.ConnectionError("Max retries exceeded"), Unavailable),
        (OSError(errno.ESTALE, "Stale file handle"), Unavailable),
        (OSError(errno.ENOSPC, "No space left on device"), RunFailed),
        (PermissionError(errno.EACCES, "Permission denied"), UserError),
        (gzip.BadGzipFile("Not a gzipped file"), UserError),
        (zlib.error("incorrect header check"), UserError),
        (OSError("Corrupt snappy compressed data."), UserError),
        (KeyError("no such table"), UserError),
    ],
)
def test_what_a_library_raises_ends_a_command_with_the_code_of_its_kind(error, kind):
    raised = storage.user_error(error, "a.txt cannot be read", "name another")
    assert type(raised) is kind and str(raised).startswith("a.txt cannot be read: ")


@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":', "}")])
def test_json_has_at_most_64_levels(opening, closing):
    def nested(levels):
        return opening * (levels - 1) + "[]" + closing * (levels - 1)

    assert untrusted.parse_json(nested(64)) is not None
    for levels in (65, 100, 10**5):
        with pytest.raises(ValueError, match="nested in more than 64 levels"):
            untrusted.parse_json(nested(levels))
