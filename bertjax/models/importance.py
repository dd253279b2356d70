"""`importance.json`: the importance of each head and each feed-forward neuron in an encoder.

    {
      "format_version": 1,
      "model": "sst2",
      "material": "glue:SST-2",
      "examples": 500,
      "objective": "Classification",
      "heads": [[0.012, ...], ...],
      "neurons": [[0.0004, ...], ...]
    }

`heads` has one row per layer, from the first layer on, with a number for each head; `neurons` has a number for each
feed-forward neuron. A number is the absolute derivative of the loss with respect to a factor on the output of the head
or neuron, averaged over examples, in nats (Michel et al., 2019, section 4.1, arXiv 1905.10650). Within a layer, numbers
are comparable as they are. Between layers, first divide them by their layer's Euclidean norm (`normalized`).
`bertjax analyze` writes the file.
"""

import dataclasses
import json
import os
from typing import Any

import numpy as np

from bertjax.models.config import EncoderConfig
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError, check_format, reason

FILE = "importance.json"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Importance:
    """Importance of heads and neurons.

    Attributes:
      heads: float64 [L, H].
      neurons: float64 [L, F].
      model: model name.
      material: name of the texts.
      examples: number of examples.
      objective: class name; its loss was differentiated.
    """

    heads: np.ndarray
    neurons: np.ndarray
    model: str = ""
    material: str = ""
    examples: int = 0
    objective: str = ""

    def to_json(self) -> bytes:
        """Return the file content."""
        about = {name: getattr(self, name) for name in ("model", "material", "examples", "objective")}
        arrays = {"heads": self.heads, "neurons": self.neurons}
        numbers = {name: [[float(f"{x:.6g}") for x in row] for row in array] for name, array in arrays.items()}
        return (json.dumps({"format_version": FORMAT_VERSION} | about | numbers, ensure_ascii=False) + "\n").encode()


def read(path: str | os.PathLike, encoder: EncoderConfig) -> Importance:
    """Read a file and check that it fits an encoder.

    Raises:
      UserError: the file cannot be read, is not an `importance.json`, or was made for another shape.
    """
    try:
        content = untrusted.read_json(path)
        version = content["format_version"]
        arrays: dict[str, Any] = {name: np.array(content[name], np.float64) for name in ("heads", "neurons")}
        about: dict[str, Any] = {"model": str(content["model"]), "material": str(content["material"])}
        about |= {"examples": int(content["examples"]), "objective": str(content["objective"])}
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(
            f"{path} is not an importance.json ({type(error).__name__}: {reason(error)}); make one with "
            "python -m bertjax analyze MODEL --parts=importance"
        ) from error
    check_format(str(path), version, FORMAT_VERSION, "make it again")
    for name, width in (("heads", encoder.heads), ("neurons", encoder.feedforward)):
        if arrays[name].shape != (encoder.layers, width):
            raise UserError(
                f"{path} has {name} of the shape {list(arrays[name].shape)}, and the model has "
                f"{[encoder.layers, width]}; make it from this model with python -m bertjax analyze"
            )
        if not np.all(np.isfinite(arrays[name]) & (arrays[name] >= 0)):
            raise UserError(f"{path} has {name} that are negative or not finite; make it again")
    return Importance(**arrays, **about)


def normalized(importance: np.ndarray) -> np.ndarray:
    """Return importance [L, ...] divided by each layer's Euclidean norm; layers of zeros stay zero.

    Layers differ in scale (Molchanov et al., 2017, section 2.2, arXiv 1611.06440).
    """
    norms = np.linalg.norm(importance, axis=1, keepdims=True)
    return importance / np.where(norms > 0, norms, 1.0)
