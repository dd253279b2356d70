"""Local copies of remote folders (`gs://...`): memory maps need local files.

Large files are copied in pieces by several threads, because one connection to an object store is much slower than the
host's network.
"""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from etils import epath

from bertjax.runtime import locks, storage
from bertjax.runtime.errors import UserError
from bertjax.runtime.storage import is_remote

# Written last: a folder with a seal is complete.
SEAL = "manifest.json"
# A file beside a copy's seal. Its modification time is the time of the last complete verification.
VERIFIED = ".verified"
VERIFIED_SECONDS = 7 * 24 * 3600
_NAMED_BY_CONTENT = re.compile(r".+-[0-9a-f]{12}")
# Copying threads, and bytes per read. Their product bounds the memory.
THREADS = 8
PIECE_BYTES = 32 << 20


def exists(folder: epath.Path) -> bool:
    """Return whether a local folder exists, or a complete remote one."""
    with _reported(folder, f"cannot look into {folder}"):
        return storage.exists(folder / SEAL if is_remote(folder) else folder)


def cached(folder: epath.Path, cache_dir: str) -> Path:
    """Return the local path for a remote folder's copy.

    Stores that `prepare` named have a content hash in their names. Other names may repeat in other buckets, so a URL
    hash is added.
    """
    name = folder.name
    if not _NAMED_BY_CONTENT.fullmatch(name):
        name += f"-{hashlib.sha256(os.fspath(folder).encode()).hexdigest()[:8]}"
    return Path(cache_dir).expanduser().absolute() / name


def fetch(folder: epath.Path, cache_dir: str, check: Callable[[Path], object]) -> Path:
    """Return a local copy of a remote folder; copy it unless a copy with the same seal exists.

    One process per host copies while the others wait. A copy is verified when it is made, and again at the first start
    after a week. A damaged copy is replaced.

    Args:
      check: raises UserError if a copy differs from its manifest. Called before the copy gets its final name.

    Raises:
      UserError: the folder does not exist, cannot be read or written, or `check` raised.
    """
    copy = cached(folder, cache_dir)
    with _reported(copy, f"cannot copy {folder} to {copy}"):
        if not storage.retry((folder / SEAL).exists, folder):
            raise UserError(f"{folder} holds no token store; make one with python -m bertjax prepare")
        seal = storage.retry((folder / SEAL).read_bytes, folder)
        with locks.lock_or_wait(copy.with_name(copy.name + ".lock")):
            if (copy / SEAL).exists() and (copy / SEAL).read_bytes() == seal and _is_whole(copy, check):
                return copy
            print(f"copying {folder} to {copy}", file=sys.stderr, flush=True)
            storage.remove_drafts(copy.parent, copy.name)
            with storage.whole_folder(copy) as draft:
                _copy(folder, epath.Path(draft))
                check(draft)
                mark_verified(draft)
                # The old copy is removed last, when the new one is verified and needs only its final name.
                shutil.rmtree(copy, ignore_errors=True)
    return copy


def _is_whole(copy: Path, check: Callable[[Path], object]) -> bool:
    """Return whether a copy is undamaged. It is only checked if the last verification is a week old or unknown."""
    stamp = copy / VERIFIED
    # abs: after the clock was set back, a stamp from the far future must not stay valid until then.
    if stamp.exists() and abs(time.time() - stamp.stat().st_mtime) < VERIFIED_SECONDS:
        return True
    try:
        check(copy)
    except UserError as error:
        print(f"the copy is made again: {error}", file=sys.stderr, flush=True)
        return False
    mark_verified(copy)
    return True


def mark_verified(copy: Path) -> None:
    """Record that a local folder has just been verified."""
    (copy / VERIFIED).touch()


def upload(folder: Path, target: epath.Path, seal: str = SEAL) -> None:
    """Copy a local folder to a URL, with the file `seal` last.

    Raises:
      UserError: the target cannot be written.
    """
    with _reported(target, f"cannot copy {folder} to {target}"):
        _copy(epath.Path(folder), target, seal)


def download(folder: epath.Path, target: Path, seal: str) -> bool:
    """Copy a remote folder to a new local one; return False if the remote one is incomplete.

    Raises:
      UserError: one of them cannot be read or written.
    """
    with _reported(target, f"cannot copy {folder} to {target}"):
        if not storage.retry((folder / seal).exists, folder):
            return False
        with storage.whole_folder(target) as draft:
            _copy(folder, epath.Path(draft), seal)
    return True


class _Piece(NamedTuple):
    """A byte range in a file, copied by one thread."""

    source: epath.Path
    target: epath.Path
    start: int
    length: int


def _copy(source: epath.Path, target: epath.Path, seal: str = SEAL) -> None:
    """Copy a folder with its subfolders, with the file `seal` last."""
    # The stamp vouches for the copy on one machine, so it does not travel.
    names = [name for name in _files(source) if name not in (VERIFIED, seal)]
    with ThreadPoolExecutor(THREADS) as pool:
        # The seal starts only when all other files have arrived: a complete seal means a complete folder.
        for group in (names, [seal]):
            pieces = [piece for name in group for piece in _pieces(source / name, target / name)]
            for _ in pool.map(lambda piece: storage.retry(lambda: _copy_piece(piece), piece.source), pieces):
                pass  # the first error is raised here, and cancels the rest


def _files(folder: epath.Path) -> Iterator[str]:
    """Yield the relative paths of all files in a folder, recursively. On an object store a folder may list itself."""
    for path in sorted(storage.retry(lambda: list(folder.iterdir()), folder)):
        if not path.is_dir():
            yield path.name
        elif path != folder:
            yield from (f"{path.name}/{name}" for name in _files(path))


def _pieces(source: epath.Path, target: epath.Path) -> Iterator[_Piece]:
    """Cut a file into pieces. A remote target is one piece, because objects are written whole."""
    size = storage.retry(lambda: source.stat().length, source)
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_remote(target):
        yield _Piece(source, target, 0, size)
        return
    # Threads write into a file that already has its size, each at its own offset.
    target.touch()
    os.truncate(target, size)
    for start in range(0, size, PIECE_BYTES):
        yield _Piece(source, target, start, min(PIECE_BYTES, size - start))


def _copy_piece(piece: _Piece) -> None:
    with piece.source.open("rb") as source:
        if is_remote(piece.target):
            with piece.target.open("wb") as target:
                shutil.copyfileobj(source, target, PIECE_BYTES)
            return
        with open(piece.target, "r+b") as target:
            source.seek(piece.start)
            target.seek(piece.start)
            content = source.read(piece.length)
            # The target already has its full size, so a short read would leave zeros in it, without an error.
            if len(content) < piece.length:
                raise OSError(errno.EIO, "the file ended early")
            target.write(content)


@contextlib.contextmanager
def _reported(path: epath.PathLike, what: str) -> Iterator[None]:
    """Turn any file-system error into a one-line UserError."""
    try:
        with storage.storage_errors(path):
            yield
    except OSError as error:
        raise storage.user_error(error, what, "check the address and your rights") from error
