"""Classify checkpoint errors: corruption, transient storage errors, permissions, full disk, out of memory."""

import errno
import os
import re
from collections.abc import Iterator

import jax
from etils import epath

from bertjax.runtime import storage
from bertjax.runtime.errors import Damaged, RunFailed, UserError, cut_text, reason
from bertjax.runtime.storage import StorageError

# TensorStore raises ValueErrors that start with an Abseil status code. These codes mean that a file is missing or
# truncated, or that its content fails a checksum or a decoder.
_CORRUPT = {"DATA_LOSS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE"}
_NO_RIGHTS = {"PERMISSION_DENIED", "UNAUTHENTICATED"}
_CODE = re.compile(r"([A-Z]+(?:_[A-Z]+)*): ")
_SYSTEM_ERROR = re.compile(r"\[os_error_code='(\d+)'")


def explain(error: Exception, path: epath.PathLike) -> Exception:
    """Translate an error that Orbax raised while reading `path`.

    Returns:
      `Damaged` if a file is missing, truncated or malformed. `OSError` if the storage failed. `RunFailed` if memory is
      too small. Otherwise the error itself.
    """
    # Orbax wraps errors of its storage layers, so the informative one is somewhere in the chain of causes.
    for cause in _causes(error):
        if isinstance(cause, UserError):
            return cause
        if isinstance(cause, MemoryError) or _lacks_device_memory(cause):
            return RunFailed(
                f"{os.fspath(path)} does not fit into memory ({reason(cause)}); it is kept; use more devices, or "
                "runtime.strategy=fsdp"
            )
        if isinstance(cause, FileNotFoundError):
            return Damaged(f"a file is missing: {reason(cause)}")
        if isinstance(cause, OSError):
            return cause
        if isinstance(cause, ValueError) and (code := _CODE.match(str(cause))):
            if code[1] in _CORRUPT:
                return Damaged(reason(cause))
            number = errno.EACCES if code[1] in _NO_RIGHTS else errno.EIO
            return StorageError(number, reason(cause), os.fspath(path))
    if isinstance(error, (ValueError, KeyError)):
        # Orbax's own JSON files contradict the metadata, and the digest of the metadata is verified.
        return Damaged(f"{type(error).__name__}: {reason(error)}")
    return error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _lacks_device_memory(error: BaseException) -> bool:
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def not_read(error: Exception, path: epath.PathLike) -> RunFailed:
    """Return the error for an intact checkpoint that cannot be read for a permanent reason."""
    lacks_rights = isinstance(error, StorageError) and error.errno in (errno.EACCES, errno.EPERM)
    cause = storage.reason_of(error) if isinstance(error, StorageError) else f"{type(error).__name__}: {error}"
    remedy = "give this process the right to read it" if lacks_rights else "starts.jsonl has the versions that wrote it"
    return RunFailed(f"{os.fspath(path)} cannot be read ({cause.splitlines()[0][:200]}); it is kept; {remedy}")


def why_not_written(error: BaseException) -> str:
    """Return why a checkpoint could not be written, reduced to the OS error if TensorStore's message has one."""
    number = _SYSTEM_ERROR.search(str(error))
    return os.strerror(int(number[1])) if number else cut_text(storage.reason_of(error))
