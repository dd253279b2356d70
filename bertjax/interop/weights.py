"""Read and write the weights of a checkpoint: safetensors or a PyTorch pickle, in one file or in shards."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from bertjax import untrusted
from bertjax.errors import UserError, quoted, reason
from bertjax.export import write_tensors
from bertjax.interop import pickles

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
_INDEX = ".index.json"
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}


def read(folder: Path) -> dict[str, np.ndarray]:
    """Return the tensors of `model.safetensors`, or else of `pytorch_model.bin`, by name; bfloat16 as float32.

    Instead of either file there may be shards and `FILE.index.json`, which has the shard of each tensor.

    Raises:
      UserError: there are no weights, a file is damaged, or see `pickles.read`.
    """
    for name, read_file in ((SAFETENSORS, _read_safetensors), (PICKLE, pickles.read)):
        if (folder / name).exists():
            return read_file(folder / name)
        if (folder / f"{name}{_INDEX}").exists():
            return _read_shards(folder / f"{name}{_INDEX}", read_file)
    raise UserError(f"{folder} holds neither {SAFETENSORS} nor {PICKLE}; download the weights beside its config.json")


def _read_shards(index: Path, read_file: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the tensors of all shards that an index names."""
    try:
        shard_of = untrusted.read_json(index)["weight_map"].copy()
        names = sorted(set(shard_of.values()))
        if odd := [name for name in names if name in ("", "..") or Path(name).name != name]:
            raise ValueError(f"the shard {quoted(odd[0])} is not a file beside it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} is not a readable index of shards ({reason(error)}); download it again") from None
    tensors = {}
    for name in names:
        if not (path := index.parent / name).exists():
            raise UserError(f"{path}, which {index.name} names, does not exist; download it beside the others")
        shard = read_file(path)
        expected = {tensor for tensor, shard_name in shard_of.items() if shard_name == name}
        if differing := sorted(expected ^ shard.keys()):
            raise UserError(
                f"{path} and {index.name} differ in {quoted(differing[0])}; download the files of one checkpoint"
            )
        tensors |= shard
    return tensors


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        return {name: _array(name, tensor) for name, tensor in deserialize(untrusted.read_bytes(path))}
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{path} is damaged or cut short ({reason(error)}); download it again") from None


def _array(name: str, tensor: dict) -> np.ndarray:
    if tensor["dtype"] == "BF16":
        return pickles.widen_bfloat16(np.frombuffer(tensor["data"], "<u2")).reshape(tensor["shape"])
    if tensor["dtype"] not in _DTYPES:
        raise ValueError(f"{name} holds {tensor['dtype']}")
    return np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]]).reshape(tensor["shape"])


def write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write a safetensors file that PyTorch's and Flax's classes of transformers open."""
    write_tensors(path, tensors, metadata={"format": "pt"})
