"""bertjax pretrains BERT-family encoders in JAX, from raw text to an encoder that other libraries load."""

import os
import sys
from typing import TYPE_CHECKING

if sys.version_info < (3, 11):  # noqa: UP036 - a clone runs without pip having checked
    print(f"error: bertjax needs Python 3.11 or newer, this is {sys.version.split()[0]}; see README", file=sys.stderr)
    raise SystemExit(2)

if TYPE_CHECKING:
    from bertjax.inference.predictor import Predictor
    from bertjax.opening import Model

__version__ = "0.1.0"


def load(name: str | os.PathLike) -> "Model":
    """Opens a pretrained encoder: `module, params, tokenizer = bertjax.load("RUN/export")`.

    Args:
      name: an export folder, a workdir `RUN` (its newest checkpoint) or `RUN@STEP`.

    Raises:
      UserError: nothing readable is there.
    """
    from bertjax import opening

    return opening.load(name)


def predictor(name: str | os.PathLike) -> "Predictor":
    """Opens a model to be used: `bertjax.predictor("RUN/export").fill(["The king is [MASK]."])`, or `.embed(texts)`.

    Args:
      name: as for `load`.

    Raises:
      UserError: nothing readable is there.
    """
    from bertjax import opening
    from bertjax.inference.predictor import Predictor

    return Predictor(opening.SavedModel(name).export)
