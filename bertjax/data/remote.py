"""Folders under a URL (`gs://...`): copied whole, never half there, since a memory map needs a local file."""

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from etils import epath

from bertjax import storage
from bertjax.errors import UserError
from bertjax.storage import is_remote, reason_of

# Written last and read first: where it is, all of the folder is.
SEAL = "manifest.json"


def exists(folder: epath.Path) -> bool:
    """Whether a local folder, or a sealed remote one, is there."""
    if not is_remote(folder):
        return folder.exists()
    with _reported(f"cannot look into {folder}"):
        return (folder / SEAL).exists()


def cached(folder: epath.Path, cache_dir: str) -> Path:
    """Where the local copy of a remote folder lies."""
    return Path(cache_dir).expanduser().absolute() / folder.name


def fetch(folder: epath.Path, cache_dir: str, check: Callable[[Path], object]) -> Path:
    """Copies a remote folder unless the same one is there already, and returns the copy.

    Processes of one host take turns, so one of them copies.

    Args:
      check: raises UserError where a copy is not what its manifest says; called before it takes its place.

    Raises:
      UserError: nothing is there, it cannot be read or written, or what `check` raises.
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
            storage.remove_drafts(copy)
            with storage.whole_folder(copy) as draft:
                _copy(folder, epath.Path(draft))
                check(draft)
                shutil.rmtree(copy, ignore_errors=True)
    return copy


def upload(folder: Path, target: epath.Path) -> None:
    """Copies a local folder to a URL, its manifest last.

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
    """Whatever a file system of another library raises becomes one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {reason_of(error)}; check the address, your rights and the network") from error
