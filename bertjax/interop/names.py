"""Tables of names, and the conversion of params by them in both directions; an unmatched name is an error."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError, quoted, shorten

LAYER = "{layer}"
ENCODER_ONLY = "add --encoder-only to convert the encoder alone"


class Name(NamedTuple):
    """Both names of one tensor.

    Attributes:
      theirs: name in transformers. `{layer}` stands for the number of a layer; each layer has a tensor of its own.
      ours: flattened path of a param; layers are stacked on its first axis.
      transposed: theirs is [out, in], ours [in, out].
      shape: shape of theirs, if it has the same numbers in the same order on other axes.
    """

    theirs: str
    ours: str
    transposed: bool = False
    shape: tuple[int, ...] | None = None


def dense(theirs: str, ours: str) -> tuple[Name, Name]:
    """Return the names of a linear layer of PyTorch."""
    return Name(f"{theirs}.weight", f"{ours}/kernel", transposed=True), Name(f"{theirs}.bias", f"{ours}/bias")


def norm(theirs: str, ours: str) -> tuple[Name, Name]:
    """Return the names of a layer norm of PyTorch."""
    return Name(f"{theirs}.weight", f"{ours}/scale"), Name(f"{theirs}.bias", f"{ours}/bias")


def embeddings(theirs: str, segments: bool = True) -> tuple[Name, ...]:
    """Return the names of the summed embedding tables and of their layer norm."""
    segment = (Name(f"{theirs}.token_type_embeddings.weight", "encoder/embeddings/segment"),) if segments else ()
    return (
        Name(f"{theirs}.word_embeddings.weight", "encoder/embeddings/word"),
        Name(f"{theirs}.position_embeddings.weight", "encoder/embeddings/position"),
        *segment,
        *norm(f"{theirs}.LayerNorm", "encoder/embeddings/norm"),
    )


def layers(
    theirs: str,
    *,
    query: str,
    key: str,
    value: str,
    attended: str,
    attention_norm: str,
    intermediate: str,
    output: str,
    output_norm: str,
) -> tuple[Name, ...]:
    """Return the names of the stack of layers; the arguments are the names within a layer `theirs`."""
    ours = "encoder/layers"
    return (
        *dense(f"{theirs}.{query}", f"{ours}/attention/query"),
        *dense(f"{theirs}.{key}", f"{ours}/attention/key"),
        *dense(f"{theirs}.{value}", f"{ours}/attention/value"),
        *dense(f"{theirs}.{attended}", f"{ours}/attention/output"),
        *norm(f"{theirs}.{attention_norm}", f"{ours}/attention_norm"),
        *dense(f"{theirs}.{intermediate}", f"{ours}/intermediate"),
        *dense(f"{theirs}.{output}", f"{ours}/output"),
        *norm(f"{theirs}.{output_norm}", f"{ours}/output_norm"),
    )


def bert_layers(theirs: str) -> tuple[Name, ...]:
    """Return the names of the stack in BERT and in families whose classes were copied from BERT's."""
    return layers(
        f"{theirs}.encoder.layer.{LAYER}",
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        attended="attention.output.dense",
        attention_norm="attention.output.LayerNorm",
        intermediate="intermediate.dense",
        output="output.dense",
        output_norm="output.LayerNorm",
    )


def masked_lm(transform: str, transform_norm: str, bias: str, head: str = "mlm") -> tuple[Name, ...]:
    """Return the names of the masked-LM head, or of another of the same kind; its decoder is the word embeddings."""
    return (
        *dense(transform, f"heads/{head}/transform"),
        *norm(transform_norm, f"heads/{head}/norm"),
        Name(bias, f"heads/{head}/word_bias"),
    )


def to_params(
    tensors: Mapping[str, np.ndarray], names: Sequence[Name], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Return the params by flattened path, as float32.

    Args:
      tensors: tensors by their names in transformers; float16 is widened.
      names: the table; every entry must match.
      shapes: shapes of the params by flattened path.

    Raises:
      UserError: a tensor is missing or unknown, has another shape, or is neither float16 nor float32.
    """
    layers = {name.ours: shapes[name.ours][0] for name in names if LAYER in name.theirs}
    if (most := max(layers.values(), default=0)) > len(tensors):
        raise UserError(f"config.json has {most} layers and the weights {len(tensors)} tensors; get both of one model")
    expected = {theirs for name in names for theirs in _expanded(name, layers)}
    if missing := expected - tensors.keys():
        unknown = sorted(tensors.keys() - expected)
        has = f"; it has {shorten(list(map(quoted, unknown)))}" if unknown else ""
        raise UserError(_leftover("lacks", missing, f"bertjax converts no model in part{has}"))
    if unknown := tensors.keys() - expected:
        raise UserError(_leftover("has names that bertjax does not know:", unknown, ENCODER_ONLY))
    params = {}
    for name in names:
        shape = shapes[name.ours][1:] if name.ours in layers else shapes[name.ours]
        flat = shape[::-1] if name.transposed else shape
        stack = [_checked(theirs, tensors[theirs], name.shape or flat) for theirs in _expanded(name, layers)]
        stack = [tensor.reshape(flat) for tensor in stack]
        stack = [tensor.T if name.transposed else tensor for tensor in stack]
        params[name.ours] = np.stack(stack) if name.ours in layers else np.array(stack[0])
    return params


def to_tensors(params: Mapping[str, np.ndarray], names: Sequence[Name]) -> dict[str, np.ndarray]:
    """Return the tensors by their names in transformers: the inverse of `to_params`.

    Raises:
      UserError: a param is missing or unknown, or has values that are not finite.
    """
    ours = {name.ours for name in names}
    if missing := ours - params.keys():
        raise UserError(_leftover("lacks", missing))
    if unknown := params.keys() - ours:
        raise UserError(unnamed(unknown))
    if diverged := sorted(path for path, param in params.items() if not np.isfinite(param).all()):
        raise UserError(
            f"the model has values that are not finite in {shorten(diverged)}; take an earlier checkpoint, RUN@STEP"
        )
    tensors = {}
    for name in names:
        param = np.asarray(params[name.ours])
        stacked = param if LAYER in name.theirs else param[None]
        for theirs, tensor in zip(_expanded(name, {name.ours: len(stacked)}), stacked, strict=True):
            tensor = tensor.T if name.transposed else tensor
            tensors[theirs] = tensor.reshape(name.shape or tensor.shape)
    return tensors


def _expanded(name: Name, layers: Mapping[str, int]) -> list[str]:
    if LAYER not in name.theirs:
        return [name.theirs]
    return [name.theirs.replace(LAYER, str(layer)) for layer in range(layers[name.ours])]


def _checked(theirs: str, tensor: np.ndarray, expected: tuple[int, ...]) -> np.ndarray:
    if tensor.shape != expected:
        raise UserError(
            f"the checkpoint's {theirs} has shape {list(tensor.shape)}, its config.json and class make it "
            f"{list(expected)}; get the two files of one model"
        )
    if tensor.dtype not in (np.float16, np.float32):
        raise UserError(f"the checkpoint's {theirs} holds {tensor.dtype}; save it as float32")
    return tensor.astype(np.float32)


def unnamed(paths: Iterable[str]) -> str:
    """Return the error line for params without a name in the table."""
    return _leftover("has params that Hugging Face's files have no name for:", paths, ENCODER_ONLY)


def _leftover(complaint: str, names: Iterable[str], remedy: str = "bertjax converts no model in part") -> str:
    return f"the model {complaint} {shorten(sorted(names))}; {remedy}"
