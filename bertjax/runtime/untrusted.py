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

# Maximum nesting. Settings and tokenizers have about six levels.
_DEEPEST = 64
_TOO_DEEP = f"it is nested in more than {_DEEPEST} levels"
# What a clone without Git LFS has in place of large files.
_GIT_LFS = b"version https://git-lfs.github.com/spec/"


def regular_file(path: epath.PathLike) -> epath.PathLike:
    """Return a path if it is a regular file.

    Raises:
      FileNotFoundError: it does not exist.
      OSError: it is a folder, or a pipe or device, which may be endless.
    """
    if storage.is_remote(path) and not epath.Path(path).exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    if not storage.is_remote(path) and not stat.S_ISREG(os.stat(path).st_mode):  # epath's is_file accepts devices
        raise OSError(errno.EINVAL, "it is not a file", os.fspath(path))
    return path


def read_bytes(path: epath.PathLike) -> bytes:
    """Return the content of a file.

    Raises:
      OSError: it cannot be read, it only stands for a file that Git has not fetched, or see `regular_file`.
      Unavailable: the storage does not answer.
    """
    content = storage.retry(epath.Path(regular_file(path)).read_bytes, path)
    if content.startswith(_GIT_LFS):
        raise OSError(errno.EINVAL, "it is a pointer of Git LFS and not the file; run git lfs pull", os.fspath(path))
    return content


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
