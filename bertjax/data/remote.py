"""Folders under a URL (`gs://...`), copied as a whole, because a memory map needs a local file."""

import contextlib
import functools
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from etils import epath

from bertjax import storage
from bertjax.errors import UserError
from bertjax.storage import StorageError, is_remote

# Written last and read first: if it is there, the folder is complete.
SEAL = "manifest.json"


def exists(folder: epath.Path) -> bool:
    """Return whether a local folder, or a complete remote folder, exists."""
    if not is_remote(folder):
        return folder.exists()
    with _reported(f"cannot look into {folder}"):
        return storage.exists(folder / SEAL)


def cached(folder: epath.Path, cache_dir: str) -> Path:
    """Return the path of the local copy of a remote folder."""
    return Path(cache_dir).expanduser().absolute() / folder.name


def fetch(folder: epath.Path, cache_dir: str, check: Callable[[Path], object]) -> Path:
    """Return the local copy of a remote folder, after copying it unless the same one is there already.

    Of the processes of one host one copies, and the others wait.

    Args:
      check: raises UserError if a copy differs from its manifest; called before the copy gets its name.

    Raises:
      UserError: there is no such folder, it cannot be read or written, or `check` raised.
      Unavailable: the network or the object store did not answer for a minute.
    """
    copy = cached(folder, cache_dir)
    with _reported(f"cannot copy {folder} to {copy}"):
        if not storage.exists(folder / SEAL):
            raise UserError(f"{folder} holds no token store; make one with python -m bertjax.prepare")
        seal = storage.read_bytes(folder / SEAL)
        with storage.lock_or_wait(copy.with_name(copy.name + ".lock")):
            if (copy / SEAL).exists() and (copy / SEAL).read_bytes() == seal:
                return copy
            print(f"copying {folder} to {copy}", file=sys.stderr, flush=True)
            storage.remove_drafts(copy.parent, copy.name)
            with storage.whole_folder(copy) as draft:
                _copy(folder, epath.Path(draft))
                check(draft)
                shutil.rmtree(copy, ignore_errors=True)
    return copy


def upload(folder: Path, target: epath.Path) -> None:
    """Copy a local folder to a URL, its manifest last.

    Raises:
      UserError: the target cannot be written.
      Unavailable: the network or the object store did not answer for a minute.
    """
    with _reported(f"cannot copy {folder} to {target}"):
        _copy(epath.Path(folder), target)


def _copy(source: epath.Path, target: epath.Path) -> None:
    storage.retry(functools.partial(target.mkdir, parents=True, exist_ok=True), target)
    paths = storage.retry(lambda: list(source.iterdir()), source)
    for path in sorted(paths, key=lambda path: (path.name == SEAL, path.name)):
        if storage.retry(path.is_dir, path):
            _copy(path, target / path.name)
        else:
            storage.retry(functools.partial(path.copy, target / path.name, overwrite=True), path)


@contextlib.contextmanager
def _reported(what: str) -> Iterator[None]:
    """Turn a failure of storage into an error of one line that has the exit code of its kind."""
    try:
        yield
    except StorageError as error:
        raise storage.user_error(error, what, "check the address and your rights") from error
