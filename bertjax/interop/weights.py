"""Read and write the weights of a checkpoint: safetensors, or a PyTorch pickle."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from bertjax import untrusted
from bertjax.errors import UserError, reason
from bertjax.export import write_tensors
from bertjax.interop import pickles

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}


def read(folder: Path) -> dict[str, np.ndarray]:
    """Return the tensors of `model.safetensors`, or else of `pytorch_model.bin`, by name; bfloat16 as float32.

    Raises:
      UserError: neither exists, it is damaged, or see `pickles.read`.
    """
    if (folder / SAFETENSORS).exists():
        return _read_safetensors(folder / SAFETENSORS)
    if (folder / PICKLE).exists():
        return pickles.read(folder / PICKLE)
    if split := sorted(path.name for path in folder.glob("*.index.json")):
        raise UserError(f"the weights in {folder} are split ({split[0]}); save them again as one {SAFETENSORS}")
    raise UserError(f"{folder} holds neither {SAFETENSORS} nor {PICKLE}; download the weights beside its config.json")


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
