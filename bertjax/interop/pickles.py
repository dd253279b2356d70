"""A reader for `pytorch_model.bin` that needs no PyTorch and runs no code from the file.

Unpickling calls functions that the pickle names. `bertjax.interop.opcodes` interprets the pickle instead and knows only
the names that rebuild a tensor; they give records, and any other name is an error. Both containers are read: the zip
archive that `torch.save` writes since version 1.6, and the older sequence of pickles followed by raw arrays
(torch/serialization.py).
"""

import io
import math
import struct
import zipfile
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from bertjax import untrusted
from bertjax.errors import UserError, quoted, reason
from bertjax.interop import opcodes
from bertjax.interop.opcodes import Refused
from bertjax.untrusted import is_shape

# First bytes of a zip archive, also of a truncated one.
_ZIP = b"PK"
# The first pickle in the older container.
_MAGIC = 0x1950A86A20F9469CFC6C
_BFLOAT16 = "bfloat16"
# Total memory that the tensors may take, in multiples of the file's size.
_MOST_COPIES = 8
# Flag bit of an encrypted zip member.
_ENCRYPTED = 1
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
    """Element type of a storage, as a numpy dtype."""

    dtype: str


class _Storage(NamedTuple):
    dtype: str
    key: str
    length: int


class _Tensor(NamedTuple):
    """A strided view of a storage; offset and strides count elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _rebuild_tensor(storage: _Storage, offset: int, shape: tuple, strides: tuple, *_: Any) -> _Tensor:
    if not (isinstance(storage, _Storage) and type(offset) is int and is_shape(shape) and is_shape(strides)):
        raise ValueError("a tensor has no storage, or an odd offset, shape or strides")
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor


def _ordered_dict(pairs: list = ()) -> dict[str, Any]:
    """Stand-in for `collections.OrderedDict`; files from Python 2 pass the items as an argument."""
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise ValueError("it has an OrderedDict whose keys are not texts")
    return dict(pairs)


_KNOWN = {
    ("collections", "OrderedDict"): _ordered_dict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    **{("torch", name): _Kind(dtype) for name, dtype in _STORAGES.items()},
}


def _storage_of(saved: tuple) -> _Storage:
    tag, kind, key, _, length, *view = saved
    if tag != "storage" or not isinstance(kind, _Kind) or any(part is not None for part in view):
        raise Refused(f"the persistent object {tag!r}" if isinstance(tag, str) else "a persistent object")
    if not isinstance(key, str) or type(length) is not int:
        raise ValueError("a storage has no name or no length")
    return _Storage(kind.dtype, key, length)


def _load(file: IO[bytes]) -> Any:
    return opcodes.load(file, _KNOWN, _storage_of)


def read(path: Path) -> dict[str, np.ndarray]:
    """Return a state dict's tensors by name; bfloat16, which numpy lacks, becomes float32.

    Raises:
      UserError: the file is damaged or is not a state dict, or its pickle names anything but tensors.
    """
    try:
        content = untrusted.read_bytes(path)
        state, storages = _read_zip(content) if content.startswith(_ZIP) else _read_sequence(content, path)
        _check_sizes(state, len(content), path)
        return {name: _array(tensor, storages) for name, tensor in state.items()}
    except Refused as error:
        raise UserError(
            f"{path} asks to run {error} while it is read, which bertjax does not do; get the checkpoint as safetensors"
        ) from None
    except (
        *(OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, MemoryError),
        *(struct.error, zipfile.BadZipFile, NotImplementedError, RuntimeError),
    ) as error:
        raise UserError(
            f"{path} is not a readable PyTorch state dict ({reason(error)}); download the checkpoint again"
        ) from None


def _check_sizes(state: Any, size: int, path: Path) -> None:
    """Raise ValueError unless this is a state dict whose tensors take about as much memory as the file.

    Some growth is normal: tied weights share a storage, and bfloat16 is widened. A malicious file could go further,
    with many tensors on one storage or with strides of 0, and take any amount of memory.
    """
    # Trainers often save {"model": state dict, "optimizer": ..., "epoch": ...}.
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}, not a state dict")
    if odd := {key: value for key, value in state.items() if not isinstance(value, _Tensor)}:
        models = (key for key, value in odd.items() if isinstance(value, dict) and value)
        models = (key for key in models if all(isinstance(tensor, _Tensor) for tensor in odd[key].values()))
        if key := next(models, None):
            raise UserError(
                f"{path} is a checkpoint of training, whose model may be its part {quoted(key)}; save that alone, in "
                f"PyTorch: torch.save(torch.load({str(path)!r}, weights_only=False)[{quoted(key)}], NEW)"
            )
        raise ValueError(f"it holds a {type(next(iter(odd.values()))).__name__} among the tensors")
    elements = (math.prod(tensor.shape) * max(4, _itemsize(tensor.storage.dtype)) for tensor in state.values())
    if sum(elements) > _MOST_COPIES * size:
        raise ValueError(f"its tensors would take more than {_MOST_COPIES} times the size of the file")


def _read_zip(content: bytes) -> tuple[Any, dict[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ENCRYPTED for member in members):
            raise ValueError("it is compressed or encrypted, which torch.save never does")
        if sum(member.file_size for member in members) > len(content):
            raise ValueError("its parts are larger than the file")
        # The archive has one folder, whose name is free.
        [record] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        root = record.removesuffix("data.pkl")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("its numbers are big-endian")
        state = _load(io.BytesIO(archive.read(record)))
        data = f"{root}data/"
        return state, {
            name.removeprefix(data): archive.read(name) for name in archive.namelist() if name.startswith(data)
        }


def _read_sequence(content: bytes, path: Path) -> tuple[Any, dict[str, bytes]]:
    file = io.BytesIO(content)
    if _load(file) != _MAGIC:
        raise ValueError("it does not start as torch.save writes it")
    _load(file)  # the protocol
    if not _load(file).get("little_endian", True):
        raise ValueError("its numbers are big-endian")
    state = _load(file)
    _check_sizes(state, len(content), path)
    sizes = {tensor.storage.key: _itemsize(tensor.storage.dtype) for tensor in state.values()}
    storages = {}
    for key in _load(file):
        (length,) = struct.unpack("<q", file.read(8))
        storages[key] = file.read(length * sizes[key])
    return state, storages


def _itemsize(dtype: str) -> int:
    return 2 if dtype == _BFLOAT16 else np.dtype(dtype).itemsize


def _array(tensor: _Tensor, storages: dict[str, bytes]) -> np.ndarray:
    storage, offset, shape, strides = tensor
    data = storages[storage.key]
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    inside = math.prod(shape) == 0 or last < len(data) // _itemsize(storage.dtype)
    if min((offset, *shape, *strides)) < 0 or not inside:
        raise ValueError("a tensor reaches beyond its data")
    # numpy has no bfloat16, so its bits are read as uint16 and widened at the end.
    flat = np.frombuffer(data, "<u2" if storage.dtype == _BFLOAT16 else storage.dtype)
    steps = [stride * flat.itemsize for stride in strides]
    # as_strided reads any memory it is told to: the checks above keep it inside.
    array = np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat[offset:], shape, steps)).reshape(shape)
    return widen_bfloat16(array) if storage.dtype == _BFLOAT16 else array


def widen_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Return bfloat16 bit patterns (uint16) as float32: they are its upper 16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
