"""Reaching files and libraries, where every failure becomes one line."""

import contextlib
import io
from collections.abc import Iterator

from etils import epath

from bertjax.errors import UserError
from bertjax.storage import reason_of

MIB = 1 << 20


def open_file(path: epath.Path) -> io.BufferedReader:
    """Opens a local or remote file for reading, every failure of which is a UserError."""
    return io.BufferedReader(_File(path), MIB)


class _File(io.RawIOBase):
    """A binary file that says in one line what is wrong, whatever file system is below."""

    def __init__(self, path: epath.Path):
        self._path = path
        with foreign(f"{path} cannot be read"):
            self._file = path.open("rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        with foreign(f"{self._path} cannot be read"):
            return self._file.readinto(buffer)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with foreign(f"{self._path} cannot be read"):
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._file.close()


@contextlib.contextmanager
def foreign(what: str, remedy: str = "") -> Iterator[None]:
    """Turns whatever another library raises (network, rights, its own checks) into one line that begins with `what`."""
    try:
        yield
    except UserError:
        raise
    except ImportError as error:
        remedy = "install it, or all that corpora of every kind need with pip install '.[data,gcs]'"
        raise UserError(f"{what}: {reason_of(error)}; {remedy}") from error
    except Exception as error:
        raise UserError(f"{what}: {reason_of(error)}" + (f"; {remedy}" if remedy else "")) from error


@contextlib.contextmanager
def extra(what: str) -> Iterator[None]:
    """Around the import of a library of the extra `data`: where it is missing, says how `what` is to be had."""
    try:
        yield
    except ImportError as error:
        raise UserError(f"{what} needs {error.name}, which is not installed; pip install '.[data]'") from error
