"""Read files that somebody else made: what is in them takes no more memory than their size allows, and runs nothing."""

import errno
import io
import json
import os
import stat
from collections.abc import Iterable
from typing import Any

from etils import epath

from bertjax import storage

# Settings and tokenizers have about six levels.
_DEEPEST = 64
_TOO_DEEP = f"it is nested in more than {_DEEPEST} levels"


def regular_file(path: epath.PathLike) -> epath.PathLike:
    """Return a path if it leads to a file.

    Raises:
      FileNotFoundError: it leads to nothing.
      OSError: it leads to a folder, or to a pipe or a device, which may have no end.
    """
    if not epath.Path(path).exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    if not storage.is_remote(path) and not stat.S_ISREG(os.stat(path).st_mode):  # epath takes a device for a file
        raise OSError(errno.EINVAL, "it is not a file", os.fspath(path))
    return path


def read_bytes(path: epath.PathLike) -> bytes:
    """Return the content of a file.

    Raises:
      OSError: it cannot be read, or see `regular_file`.
      Unavailable: the storage does not answer.
    """
    return storage.retry(epath.Path(regular_file(path)).read_bytes, path)


def read_text(path: epath.PathLike) -> str:
    """Return the UTF-8 text in a file, its lines separated by \\n.

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
    """Return a JSON value.

    Raises:
      ValueError: it is not JSON, or is nested so deeply that whoever walks through it may fail.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
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
