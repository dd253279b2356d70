"""Name tables between bertjax params and PyTorch tensors, and conversion both ways; unmatched names are errors."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.config.export import EARLIER, check_finite
from bertjax.runtime.errors import UserError, quoted, shorten

LAYER = "{layer}"
ENCODER_ONLY = "add --encoder-only to convert the encoder alone"


def of_run(complaint: object, run: str) -> str:
    """Return a complaint of a conversion with a whole command in place of a flag."""
    whole = f"the encoder alone: python -m bertjax convert --from={run} --to=hf/encoder --encoder-only"
    return str(complaint).replace(ENCODER_ONLY, whole)


class Name(NamedTuple):
    """One tensor's name in transformers and in bertjax.

    Attributes:
      theirs: name in transformers. `{layer}` is the layer number, since each layer has its own tensor.
      ours: flattened path of the param; layers are stacked on axis 0.
      transposed: theirs is [out, in], ours [in, out].
      shape: shape of theirs if it splits or joins our axes, with the elements in the same order.
      part: (index, count) if theirs joins the rows of several params. They follow one another in the table.
    """

    theirs: str
    ours: str
    transposed: bool = False
    shape: tuple[int, ...] | None = None
    part: tuple[int, int] = (0, 1)


def dense(theirs: str, ours: str) -> tuple[Name, Name]:
    """Return the names of a dense layer (`torch.nn.Linear`)."""
    return Name(f"{theirs}.weight", f"{ours}/kernel", transposed=True), Name(f"{theirs}.bias", f"{ours}/bias")


def joined(theirs: str, *ours: str) -> tuple[Name, ...]:
    """Return the names of dense layers whose outputs one tensor computes, in this order."""
    parts = enumerate(ours)
    return tuple(name._replace(part=(place, len(ours))) for place, own in parts for name in dense(theirs, own))


def norm(theirs: str, ours: str) -> tuple[Name, Name]:
    """Return the names of a layer norm (`torch.nn.LayerNorm`)."""
    return Name(f"{theirs}.weight", f"{ours}/scale"), Name(f"{theirs}.bias", f"{ours}/bias")


def embeddings(theirs: str, segments: bool = True) -> tuple[Name, ...]:
    """Return the names of the embedding tables and their layer norm."""
    segment = (Name(f"{theirs}.token_type_embeddings.weight", "encoder/embeddings/segment"),) if segments else ()
    return (
        Name(f"{theirs}.word_embeddings.weight", "encoder/embeddings/word"),
        Name(f"{theirs}.position_embeddings.weight", "encoder/embeddings/position"),
        *segment,
        *norm(f"{theirs}.LayerNorm", "encoder/embeddings/norm"),
    )


_OF_ATTENTION = "attention/query attention/key attention/value attention/output attention_norm".split()
_OF_FEEDFORWARD = "intermediate output output_norm".split()


def layers(theirs: str, attention: str, feedforward: str) -> tuple[Name, ...]:
    """Return the names of the layer stack.

    Args:
      theirs: name of a layer.
      attention: names in a layer of the queries, keys, values, output and norm of attention, with spaces between.
      feedforward: names of the two kernels and the norm of the feed-forward network.
    """
    parts = zip([*attention.split(), *feedforward.split()], [*_OF_ATTENTION, *_OF_FEEDFORWARD], strict=True)
    made = [
        (norm if ours.endswith("norm") else dense)(f"{theirs}.{name}", f"encoder/layers/{ours}") for name, ours in parts
    ]
    return tuple(itertools.chain.from_iterable(made))


_OF_BERT = [f"attention.{name}" for name in "self.query self.key self.value output.dense output.LayerNorm".split()]


def bert_layers(theirs: str, attention: str = " ".join(_OF_BERT)) -> tuple[Name, ...]:
    """Return the names of the layer stack in BERT and in the classes that were copied from it."""
    return layers(f"{theirs}.encoder.layer.{LAYER}", attention, "intermediate.dense output.dense output.LayerNorm")


def masked_lm(transform: str, transform_norm: str, bias: str, head: str = "mlm") -> tuple[Name, ...]:
    """Return the names of a masked-LM head (or causal, see `head`). Its decoder is tied to the word embeddings."""
    return (
        *dense(transform, f"heads/{head}/transform"),
        *norm(transform_norm, f"heads/{head}/norm"),
        Name(bias, f"heads/{head}/word_bias"),
    )


def to_params(
    tensors: Mapping[str, np.ndarray], names: Sequence[Name], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Return float32 params by flattened path.

    Args:
      tensors: tensors by name in transformers; float16 is widened.
      names: the table; every entry with a shape must match.
      shapes: shape of each param by flattened path.

    Raises:
      UserError: a tensor is missing or unknown, has another shape, or is neither float16 nor float32.
    """
    names = [name for name in names if name.ours in shapes]
    layers = {name.ours: shapes[name.ours][0] for name in names if LAYER in name.theirs}
    # Checked before names are made for every layer: a damaged file may ask for a billion of them.
    if (most := max(layers.values(), default=0)) > len(tensors):
        raise UserError(f"config.json has {most} layers and the weights {len(tensors)} tensors; get both of one model")
    expected = {theirs for name in names for theirs in _expanded(name, layers)}
    # A renamed tensor is both missing and unknown: the message has both names.
    if missing := expected - tensors.keys():
        unknown = sorted(tensors.keys() - expected)
        has = f"; it has {shorten(list(map(quoted, unknown)))}" if unknown else ""
        raise UserError(_leftover("lacks", missing, f"bertjax converts no model in part{has}"))
    if unknown := tensors.keys() - expected:
        raise UserError(_leftover("has names that bertjax does not know:", unknown, ENCODER_ONLY))
    check_finite(tensors, "the checkpoint", "get one from before it diverged, saved as float32")
    params = {}
    for name in names:
        shape = shapes[name.ours][1:] if name.ours in layers else shapes[name.ours]
        flat = shape[::-1] if name.transposed else shape
        place, count = name.part
        expected = name.shape or (count * flat[0], *flat[1:])
        stack = [_checked(theirs, tensors[theirs], expected) for theirs in _expanded(name, layers)]
        stack = [np.split(tensor, count)[place].reshape(flat) for tensor in stack]
        stack = [tensor.T if name.transposed else tensor for tensor in stack]
        params[name.ours] = np.stack(stack) if name.ours in layers else np.array(stack[0])
    return params


def to_tensors(params: Mapping[str, np.ndarray], names: Sequence[Name]) -> dict[str, np.ndarray]:
    """Return tensors by name in transformers: the inverse of `to_params`.

    Raises:
      UserError: a param is unknown, or contains NaN or infinity.
    """
    names = [name for name in names if name.ours in params]
    if unknown := params.keys() - {name.ours for name in names}:
        raise UserError(unnamed(unknown))
    check_finite(params, "the model", EARLIER)
    tensors: dict[str, list[np.ndarray]] = {}
    for name in names:
        param = np.asarray(params[name.ours])
        stacked = param if LAYER in name.theirs else param[None]  # a stack of one, so that both go through one loop
        for theirs, tensor in zip(_expanded(name, {name.ours: len(stacked)}), stacked, strict=True):
            tensor = tensor.T if name.transposed else tensor
            tensors.setdefault(theirs, []).append(tensor.reshape(name.shape or tensor.shape))
    return {theirs: np.concatenate(parts) if len(parts) > 1 else parts[0] for theirs, parts in tensors.items()}


def _expanded(name: Name, layers: Mapping[str, int]) -> list[str]:
    if LAYER not in name.theirs:
        return [name.theirs]
    return [name.theirs.replace(LAYER, str(layer)) for layer in range(layers[name.ours])]


def _checked(theirs: str, tensor: np.ndarray, expected: tuple[int, ...]) -> np.ndarray:
    if tensor.shape != expected:
        raise UserError(
            f"the checkpoint's {theirs} has shape {list(tensor.shape)}, config.json makes it {list(expected)}; "
            "get the two files of one model"
        )
    if tensor.dtype not in (np.float16, np.float32):
        raise UserError(f"the checkpoint's {theirs} holds {tensor.dtype}; save it as float32")
    return tensor.astype(np.float32, copy=False)


def unnamed(paths: Iterable[str]) -> str:
    """Return an error line for params that the table does not name."""
    return _leftover("has params that Hugging Face's files have no name for:", paths, ENCODER_ONLY)


def _leftover(complaint: str, names: Iterable[str], remedy: str) -> str:
    return f"the model {complaint} {shorten(sorted(names))}; {remedy}"
