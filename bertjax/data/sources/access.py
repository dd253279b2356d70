"""Open files and import optional libraries, turning every failure into a one-line error."""

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from etils import epath

from bertjax.runtime import storage
from bertjax.runtime.errors import UserError

T = TypeVar("T")

MIB = 1 << 20


def open_file(path: epath.Path) -> io.BufferedReader:
    """Open a local or remote file for reading. Transient failures are retried; what remains raises `UserError`."""
    return io.BufferedReader(_File(path), MIB)


class _File(io.RawIOBase):
    """A binary file with one-line errors on every file system. After a failure it is reopened at the same offset."""

    def __init__(self, path: epath.Path):
        self._path, self._position = path, 0
        self._file: Any = None  # while it is not open
        self._attempt(lambda file: None)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        count = self._attempt(lambda file: file.readinto(buffer))
        self._position += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = self._attempt(lambda file: file.seek(offset, whence))
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._file:
                self._file.close()

    def _attempt(self, action: Callable[[Any], T]) -> T:
        """Run an action on the file, with retries, at the position where the last action left it."""

        def attempt() -> T:
            if self._file is None:  # first use, or a failure has closed it: a broken stream cannot be trusted to seek
                self._file = self._path.open("rb")
                self._file.seek(self._position)
            try:
                return action(self._file)
            except Exception:
                self._file = None  # the next attempt opens the file again
                raise

        with foreign(f"{self._path} cannot be read", "check the path and your rights"):
            return storage.retry(attempt, self._path)


@contextlib.contextmanager
def foreign(what: str, remedy: str) -> Iterator[None]:
    """Turn any error that another library raises (network, rights, its own checks) into one that starts with `what`.

    Raises:
      Unavailable: the network or a server failed in a way that may pass.
      UserError: anything else.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, ImportError) or isinstance(error.__cause__, ImportError):
            remedy = "install it, or everything that corpora need with pip install '.[data,gcs,tfds]'"
        raise storage.user_error(error, what, remedy) from error


@contextlib.contextmanager
def extra(what: str) -> Iterator[None]:
    """Wrap the import of an optional library; if it is missing, the error names the command to install it."""
    try:
        yield
    except ImportError as error:
        name = "tfds" if error.name == "tensorflow_datasets" else "data"
        raise UserError(f"{what} needs {error.name}, which is not installed; pip install '.[{name}]'") from error
