"""Read PyTorch's `pytorch_model.bin` without PyTorch, and without running code from the pickle in it.

A pickle names functions that are called while it is read. Here only the names that rebuild a tensor are known. They
give records, and any other name is an error. Both containers are read: the zip archive that `torch.save` writes
since version 1.6, and the sequence of pickles and then bare arrays that it wrote before (torch/serialization.py).
"""

import collections
import io
import math
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.errors import UserError

# Content of the first pickle of the older container.
_MAGIC = 0x1950A86A20F9469CFC6C
_BFLOAT16 = "bfloat16"
_STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": _BFLOAT16,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "?",
}


class _Kind(NamedTuple):
    """The element type of a storage, as a numpy dtype."""

    dtype: str


class _Storage(NamedTuple):
    dtype: str
    key: str
    length: int


class _Tensor(NamedTuple):
    """A view of a storage, in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _rebuild_tensor(storage: _Storage, offset: int, shape: tuple, strides: tuple, *_: Any) -> _Tensor:
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor


_KNOWN = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    **{("torch", name): _Kind(dtype) for name, dtype in _STORAGES.items()},
}


class _Refused(Exception):
    """The pickle names something other than tensors."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise _Refused(f"{module}.{name}")
        return _KNOWN[module, name]

    def persistent_load(self, saved: Any) -> _Storage:
        tag, kind, key, _, length, *view = saved
        if tag != "storage" or not isinstance(kind, _Kind) or any(part is not None for part in view):
            raise _Refused(f"the persistent object {tag!r}")
        return _Storage(kind.dtype, str(key), int(length))


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a state dict by name; bfloat16, which numpy lacks, as float32.

    Raises:
      UserError: the file is damaged, is not a state dict, or its pickle names anything but tensors.
    """
    try:
        content = path.read_bytes()
        state, storages = _read_zip(content) if zipfile.is_zipfile(io.BytesIO(content)) else _read_sequence(content)
        if not isinstance(state, dict):
            raise ValueError(f"it holds a {type(state).__name__}, not a state dict")
        return {str(name): _array(tensor, storages) for name, tensor in state.items()}
    except _Refused as error:
        raise UserError(
            f"{path} asks to run {error} while it is read, which bertjax does not do; get the checkpoint as safetensors"
        ) from None
    except (
        *(OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, MemoryError),
        *(struct.error, pickle.UnpicklingError, zipfile.BadZipFile),
    ) as error:
        raise UserError(
            f"{path} is not a readable PyTorch state dict ({error}); download the checkpoint again"
        ) from None


def _read_zip(content: bytes) -> tuple[Any, dict[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        [record] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        root = record.removesuffix("data.pkl")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("its numbers are big-endian")
        state = _Unpickler(io.BytesIO(archive.read(record))).load()
        data = f"{root}data/"
        return state, {
            name.removeprefix(data): archive.read(name) for name in archive.namelist() if name.startswith(data)
        }


def _read_sequence(content: bytes) -> tuple[Any, dict[str, bytes]]:
    file = io.BytesIO(content)
    if _Unpickler(file).load() != _MAGIC:
        raise ValueError("it does not start as torch.save writes it")
    _Unpickler(file).load()  # the protocol
    if not _Unpickler(file).load().get("little_endian", True):
        raise ValueError("its numbers are big-endian")
    unpickler = _Unpickler(file)
    state = unpickler.load()
    sizes = {
        tensor.storage.key: _itemsize(tensor.storage.dtype) for tensor in state.values() if isinstance(tensor, _Tensor)
    }
    storages = {}
    for key in _Unpickler(file).load():
        (length,) = struct.unpack("<q", file.read(8))
        storages[key] = file.read(length * sizes[key])
    return state, storages


def _itemsize(dtype: str) -> int:
    return 2 if dtype == _BFLOAT16 else np.dtype(dtype).itemsize


def _array(tensor: Any, storages: dict[str, bytes]) -> np.ndarray:
    if not isinstance(tensor, _Tensor):
        raise ValueError(f"it holds a {type(tensor).__name__} among the tensors")
    storage, offset, shape, strides = tensor
    data = storages[storage.key]
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    inside = math.prod(shape) == 0 or last < len(data) // _itemsize(storage.dtype)
    if min((offset, *shape, *strides)) < 0 or not inside:
        raise ValueError("a tensor reaches beyond its data")
    flat = widen_bfloat16(data) if storage.dtype == _BFLOAT16 else np.frombuffer(data, np.dtype(storage.dtype))
    steps = [stride * flat.itemsize for stride in strides]
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat[offset:], shape, steps)).reshape(shape)


def widen_bfloat16(data: bytes) -> np.ndarray:
    """Return bfloat16 bytes as float32, whose upper half they are."""
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
