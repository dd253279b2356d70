"""The one format in which models leave a run: `model.safetensors`, `bertjax.json`, the tokenizer.

Reading it needs neither Grain nor Orbax and starts no backend.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bertjax.config import Config, from_dict, to_dict
from bertjax.data import tokenizer
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.models import vocabulary
from bertjax.models.config import EncoderConfig

FORMAT_VERSION = 1
_WEIGHTS, RECORD, _TOKENIZER = "model.safetensors", "bertjax.json", "tokenizer"


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
    params = vocabulary.cut(export.params, export.encoder)
    save_file({path: np.ascontiguousarray(leaf) for path, leaf in _flatten(params)}, folder / _WEIGHTS)
    export.tokenizer.save(folder / _TOKENIZER)
    record = {
        "format_version": FORMAT_VERSION,
        "config": to_dict(export.config),
        "vocab_size": export.encoder.vocab_size,
        "numbers": export.numbers,
    }
    draft = folder / f".{RECORD}.draft"
    draft.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(folder / RECORD)


def read(folder: os.PathLike) -> Export:
    """Reads what `write` wrote.

    Raises:
      UserError: no export, a damaged one, or one of a newer format.
    """
    folder = Path(folder)
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        version, settings, vocab_size, numbers = (
            record[key] for key in ("format_version", "config", "vocab_size", "numbers")
        )
        flat = load_file(folder / _WEIGHTS)
    except FileNotFoundError as error:
        raise UserError(f"{folder} is no export: {Path(error.filename or _WEIGHTS).name} is missing") from error
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"the export {folder} is damaged ({error}); export it again from its run") from error
    if version > FORMAT_VERSION:
        raise UserError(
            f"{folder} has export format {version}, this bertjax reads up to {FORMAT_VERSION}; upgrade bertjax"
        )
    config = from_dict(settings)
    encoder = config.encoder(vocab_size, backend="cpu")
    params = vocabulary.pad(_nest(flat), encoder)
    return Export(config, encoder, params, tokenizer.load(folder / _TOKENIZER), numbers)


def _flatten(tree: dict, prefix: str = ""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}/")
        else:
            yield prefix + key, np.asarray(value)


def _nest(flat: dict[str, np.ndarray]) -> dict:
    tree: dict = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = leaf
    return tree
