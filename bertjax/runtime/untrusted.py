"""Safe readers for untrusted files: memory bounded by the file's size, no code execution."""

import errno
import io
import json
import os
import stat
from collections.abc import Iterable
from typing import Any

from etils import epath

from bertjax.runtime import storage
from bertjax.runtime.errors import UserError

# Maximum nesting. Settings and tokenizers have about six levels.
_DEEPEST = 64
_TOO_DEEP = f"it is nested in more than {_DEEPEST} levels"
# What a clone without Git LFS has in place of large files.
GIT_LFS, POINTER = b"version https://git-lfs.github.com/spec/", ("a pointer of Git LFS", "run git lfs pull")


def regular_file(path: epath.PathLike) -> epath.Path:
    """Return the place of a path (`storage.place_of`) if it is a regular file.

    Raises:
      FileNotFoundError: it does not exist.
      OSError: it is a folder, or a pipe or device, which may be endless.
      UserError: it only stands for a file that Git has not fetched, or is a URL that cannot be opened.
      Unavailable: the storage does not answer.
    """
    path = storage.place_of(path)
    if storage.is_remote(path) and not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    if not storage.is_remote(path) and not stat.S_ISREG(os.stat(path).st_mode):  # epath's is_file accepts devices
        raise OSError(errno.EINVAL, "it is not a file", os.fspath(path))
    if storage.retry(lambda: _is_pointer(path), path):
        raise UserError(f"{path} is {' and not the file; '.join(POINTER)}")
    return path


def _is_pointer(path: epath.Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(GIT_LFS)) == GIT_LFS


def read_bytes(path: epath.PathLike) -> bytes:
    """Return the content of a file.

    Raises:
      OSError: it cannot be read, or see `regular_file`.
      Unavailable: the storage does not answer.
    """
    return storage.retry(regular_file(path).read_bytes, path)


def read_text(path: epath.PathLike) -> str:
    """Return the UTF-8 text in a file, with line ends as \\n.

    Raises:
      OSError: see `read_bytes`.
      ValueError: it is not UTF-8.
    """
    return io.TextIOWrapper(io.BytesIO(read_bytes(path)), "utf-8").read()


def read_json(path: epath.PathLike) -> Any:
    """Return the value in a JSON file.

    Raises:
      OSError: see `read_bytes`.
      ValueError: see `parse_json`.
    """
    return parse_json(read_bytes(path))


def parse_json(content: bytes | str) -> Any:
    """Parse JSON.

    Raises:
      ValueError: it is not JSON, or is nested so deeply that recursive code could fail on it.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    # Level by level, because recursion could overflow on the values that are to be refused.
    level = [value]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in _children(node)]
    if level:
        raise ValueError(_TOO_DEEP)
    return value


def _children(node: Any) -> Iterable[Any]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()
