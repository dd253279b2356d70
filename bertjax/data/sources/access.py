"""Access to files and to libraries of the extra `data`; every failure becomes an error of one line."""

import contextlib
import io
from collections.abc import Iterator

from etils import epath

from bertjax.errors import UserError
from bertjax.storage import reason_of

MIB = 1 << 20


def open_file(path: epath.Path) -> io.BufferedReader:
    """Open a local or remote file for reading; its failures are `UserError`s."""
    return io.BufferedReader(_File(path), MIB)


class _File(io.RawIOBase):
    """A binary file whose errors are one line on every file system."""

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
    """Turn what another library raises (network, rights, its own checks) into a `UserError` that starts with `what`."""
    try:
        yield
    except UserError:
        raise
    except ImportError as error:
        remedy = "install it, or everything that corpora need with pip install '.[data,gcs]'"
        raise UserError(f"{what}: {reason_of(error)}; {remedy}") from error
    except Exception as error:
        raise UserError(f"{what}: {reason_of(error)}" + (f"; {remedy}" if remedy else "")) from error


@contextlib.contextmanager
def extra(what: str) -> Iterator[None]:
    """Wrap the import of a library of the extra `data`; if it is missing, the error names the command to install it."""
    try:
        yield
    except ImportError as error:
        raise UserError(f"{what} needs {error.name}, which is not installed; pip install '.[data]'") from error
