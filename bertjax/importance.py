"""`importance.json`: how important each head and each feed-forward neuron of an encoder is.

    {
      "format_version": 1,
      "model": "sst2",
      "material": "glue:SST-2",
      "examples": 500,
      "objective": "Classification",
      "heads": [[0.012, ...], ...],
      "neurons": [[0.0004, ...], ...]
    }

`heads` has a row for each layer, the first one first, with a number for each head. `neurons` has a number for each
feed-forward neuron. A number is the mean over examples of the absolute derivative of the loss with respect to a factor
on what the head or the neuron gives (Michel et al., 2019, section 4.1, arXiv 1905.10650), in nats. `bertjax.analyze`
writes the file. Numbers of one layer can be compared as they are; between layers they are divided by the Euclidean norm
of their layer first (`normalized`).
"""

import dataclasses
import json
import os

import numpy as np

from bertjax import untrusted
from bertjax.errors import UserError, check_format, reason
from bertjax.models.config import EncoderConfig

FILE = "importance.json"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Importance:
    """The importance of the parts of an encoder.

    Attributes:
      heads: float64 [L, H].
      neurons: float64 [L, F].
      model: name of the model.
      material: name of the texts.
      examples: number of examples.
      objective: class of the objective whose loss is differentiated.
    """

    heads: np.ndarray
    neurons: np.ndarray
    model: str = ""
    material: str = ""
    examples: int = 0
    objective: str = ""

    def to_json(self) -> bytes:
        """Return the content of the file."""
        about = {name: getattr(self, name) for name in ("model", "material", "examples", "objective")}
        numbers = {name: [_rounded(row) for row in getattr(self, name)] for name in ("heads", "neurons")}
        return (json.dumps({"format_version": FORMAT_VERSION} | about | numbers, ensure_ascii=False) + "\n").encode()


def read(path: str | os.PathLike, encoder: EncoderConfig) -> Importance:
    """Return the importance in a file.

    Args:
      path: the file.
      encoder: the encoder that it must fit.

    Raises:
      UserError: the file cannot be read, is not an `importance.json`, or is of an encoder of another shape.
    """
    try:
        content = untrusted.read_json(path)
        version = content["format_version"]
        arrays = {name: np.array(content[name], np.float64) for name in ("heads", "neurons")}
        about = {"model": str(content["model"]), "material": str(content["material"])}
        about |= {"examples": int(content["examples"]), "objective": str(content["objective"])}
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(
            f"{path} is not an importance.json ({type(error).__name__}: {reason(error)}); make one with "
            "python -m bertjax.analyze MODEL --parts=importance"
        ) from error
    check_format(str(path), version, FORMAT_VERSION, "make it again")
    for name, width in (("heads", encoder.heads), ("neurons", encoder.feedforward)):
        if arrays[name].shape != (encoder.layers, width):
            raise UserError(
                f"{path} has {name} of the shape {list(arrays[name].shape)}, and the model has "
                f"{[encoder.layers, width]}; make it from this model with python -m bertjax.analyze"
            )
        if not np.all(np.isfinite(arrays[name]) & (arrays[name] >= 0)):
            raise UserError(f"{path} has {name} that are negative or not finite; make it again")
    return Importance(**arrays, **about)


def normalized(importance: np.ndarray) -> np.ndarray:
    """Return importance [L, ...] divided by the Euclidean norm of its layer; a layer of zeros stays as it is.

    Molchanov et al. (2017, section 2.2, arXiv 1611.06440) normalize so, because layers differ in scale.
    """
    norms = np.linalg.norm(importance, axis=1, keepdims=True)
    return importance / np.where(norms > 0, norms, 1.0)


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
