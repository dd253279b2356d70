"""The one format in which models leave a run: `model.safetensors`, `bertjax.json`, the tokenizer.

Reading it needs neither Grain nor Orbax and starts no backend.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.config import Config, from_dict, to_dict
from bertjax.data import tokenizer
from bertjax.data.tokenizer import Tokenizer
from bertjax.models import saved
from bertjax.models.config import EncoderConfig
from bertjax.models.saved import RECORD

_TOKENIZER = "tokenizer"


class Export(NamedTuple):
    """All that a model's folder or checkpoint holds.

    Attributes:
      config: of the run that made it.
      encoder: its encoder, the vocabulary's size filled in.
      params: of encoder and heads, the vocabulary padded as inside.
      tokenizer: of its corpus.
      numbers: what the run measured.
    """

    config: Config
    encoder: EncoderConfig
    params: dict
    tokenizer: Tokenizer
    numbers: dict[str, Any]


def write(folder: os.PathLike, export: Export) -> None:
    """Writes a folder that `read` and `bertjax.load` open; an interrupted write leaves no record to open it by."""
    folder = Path(folder)
    (folder / _TOKENIZER).mkdir(parents=True, exist_ok=True)
    (folder / RECORD).unlink(missing_ok=True)
    saved.write_params(folder, export.params, export.encoder)
    export.tokenizer.save(folder / _TOKENIZER)
    saved.write_record(
        folder,
        {"config": to_dict(export.config), "vocab_size": export.encoder.vocab_size, "numbers": export.numbers},
    )


def read(folder: os.PathLike) -> Export:
    """Reads what `write` wrote.

    Raises:
      UserError: no export, a damaged one, or one of a newer format.
    """
    record = saved.read_record(folder)
    config = from_dict(record["config"])
    encoder = config.encoder(record["vocab_size"], backend="cpu")
    params = saved.read_params(folder, encoder)
    return Export(config, encoder, params, tokenizer.load(Path(folder) / _TOKENIZER), record["numbers"])
