"""Folders under a URL (`gs://...`), copied as a whole, because a memory map needs a local file."""

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from etils import epath

from bertjax import storage
from bertjax.errors import UserError
from bertjax.storage import is_remote, reason_of

# Written last and read first: if it is there, the folder is complete.
SEAL = "manifest.json"


def exists(folder: epath.Path) -> bool:
    """Return whether a local folder, or a complete remote folder, exists."""
    if not is_remote(folder):
        return folder.exists()
    with _reported(f"cannot look into {folder}"):
        return (folder / SEAL).exists()


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
    """
    copy = cached(folder, cache_dir)
    with _reported(f"cannot copy {folder} to {copy}"):
        if not (folder / SEAL).exists():
            raise UserError(f"{folder} holds no token store; make one with python -m bertjax.prepare")
        seal = (folder / SEAL).read_bytes()
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
    """
    with _reported(f"cannot copy {folder} to {target}"):
        _copy(epath.Path(folder), target)


def _copy(source: epath.Path, target: epath.Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir(), key=lambda path: (path.name == SEAL, path.name)):
        if path.is_dir():
            _copy(path, target / path.name)
        else:
            path.copy(target / path.name, overwrite=True)


@contextlib.contextmanager
def _reported(what: str) -> Iterator[None]:
    """Turn whatever a file system raises into a `UserError` of one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {reason_of(error)}; check the address, your rights and the network") from error
