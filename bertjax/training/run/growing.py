"""Append-only files, on disks that may be full and on object stores that cannot append."""

import os
from collections.abc import Callable

from etils import epath

from bertjax.runtime import storage


class GrowingFile:
    """An append-only file, split into segments.

    An object store cannot append: each addition uploads the newest segment again, so segments must be small.

    Args:
      path_of: returns a segment's path by its number.
      number: first segment to write.
      segment_bytes: size at which the next segment starts.
      header: returns a segment's first bytes by its number.
    """

    def __init__(
        self,
        path_of: Callable[[int], epath.Path],
        number: int = 0,
        segment_bytes: float = float("inf"),
        header: Callable[[int], bytes] = lambda number: b"",
    ):
        self._path_of, self._number, self._segment_bytes, self._header = path_of, number, segment_bytes, header
        self._size = 0
        self._content = b""  # of the newest segment, on an object store

    def add(self, content: bytes) -> None:
        """Append bytes, all of them or nothing.

        Raises:
          StorageError: they cannot be written.
        """
        path = self._path_of(self._number)
        if not self._size:
            content = self._header(self._number) + content
        with storage.storage_errors(path):
            # After an error the content of the object is unknown, but the next upload replaces all of it.
            if storage.is_remote(path):
                storage.write_bytes(path, self._content + content)
                self._content += content
            else:
                _append(path, content)
        self._size += len(content)
        if self._size >= self._segment_bytes:
            self._number, self._size, self._content = self._number + 1, 0, b""


def _append(path: epath.Path, content: bytes) -> None:
    # Unbuffered: a full disk shows at once, and `write` returns how much of the content it took.
    with open(path, "ab", buffering=0) as file:
        size = file.tell()
        try:
            while content:
                content = content[file.write(content) :]
        except OSError:
            os.ftruncate(file.fileno(), size)  # remove a partial line, since the caller writes all lines again
            raise
