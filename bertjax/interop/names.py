"""A table of names, and params through it in both directions; a name that is left over on either side is an error."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError

LAYER = "{layer}"
_SHOWN = 4


class Name(NamedTuple):
    """One tensor under both names.

    Attributes:
      theirs: `{layer}` stands for the number of a layer, which has a tensor of its own.
      ours: the flattened path of a param; layers are stacked on its first axis.
      transposed: theirs is [out, in], ours [in, out].
    """

    theirs: str
    ours: str
    transposed: bool = False


def dense(theirs: str, ours: str) -> tuple[Name, Name]:
    """PyTorch's linear layer."""
    return Name(f"{theirs}.weight", f"{ours}/kernel", transposed=True), Name(f"{theirs}.bias", f"{ours}/bias")


def norm(theirs: str, ours: str) -> tuple[Name, Name]:
    """PyTorch's layer norm."""
    return Name(f"{theirs}.weight", f"{ours}/scale"), Name(f"{theirs}.bias", f"{ours}/bias")


def to_params(
    tensors: Mapping[str, np.ndarray], names: Sequence[Name], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Params by flattened path, float32.

    Args:
      tensors: by their names; float16 is widened.
      names: the table, of which every line is needed.
      shapes: of the params, by flattened path.

    Raises:
      UserError: a tensor is missing, left over, has another shape, or holds no float16 or float32.
    """
    layers = {name.ours: shapes[name.ours][0] for name in names if LAYER in name.theirs}
    wanted = {theirs for name in names for theirs in _expanded(name, layers)}
    _refuse("lacks", wanted - tensors.keys())
    _refuse("has names that bertjax does not know:", tensors.keys() - wanted)
    params = {}
    for name in names:
        shape = shapes[name.ours][1:] if name.ours in layers else shapes[name.ours]
        expected = shape[::-1] if name.transposed else shape
        found = [_checked(theirs, tensors[theirs], expected) for theirs in _expanded(name, layers)]
        found = [tensor.T if name.transposed else tensor for tensor in found]
        params[name.ours] = np.stack(found) if name.ours in layers else np.array(found[0])
    return params


def to_tensors(params: Mapping[str, np.ndarray], names: Sequence[Name]) -> dict[str, np.ndarray]:
    """The inverse of `to_params`.

    Raises:
      UserError: a param is missing or left over.
    """
    ours = {name.ours for name in names}
    _refuse("lacks", ours - params.keys())
    _refuse("has params that Hugging Face's files have no name for:", params.keys() - ours)
    tensors = {}
    for name in names:
        param = np.asarray(params[name.ours])
        stacked = param if LAYER in name.theirs else param[None]
        for theirs, tensor in zip(_expanded(name, {name.ours: len(stacked)}), stacked, strict=True):
            tensors[theirs] = tensor.T if name.transposed else tensor
    return tensors


def _expanded(name: Name, layers: Mapping[str, int]) -> list[str]:
    if LAYER not in name.theirs:
        return [name.theirs]
    return [name.theirs.replace(LAYER, str(layer)) for layer in range(layers[name.ours])]


def _checked(theirs: str, tensor: np.ndarray, expected: tuple[int, ...]) -> np.ndarray:
    if tensor.shape != expected:
        raise UserError(
            f"the checkpoint's {theirs} has shape {list(tensor.shape)}, its config.json and BERT make it "
            f"{list(expected)}; get the two files of one model"
        )
    if tensor.dtype not in (np.float16, np.float32):
        raise UserError(f"the checkpoint's {theirs} holds {tensor.dtype}; save it as float32")
    return tensor.astype(np.float32)


def _refuse(complaint: str, names: Iterable[str]) -> None:
    if names := sorted(names):
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise UserError(f"the model {complaint} {', '.join(names[:_SHOWN])}{more}; bertjax converts no model in part")
