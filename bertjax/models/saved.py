"""The weights of an export folder, and the record beside them that says what they are."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bertjax import typed
from bertjax.errors import UserError
from bertjax.models import vocabulary
from bertjax.models.config import EncoderConfig

FORMAT_VERSION = 1
WEIGHTS, RECORD = "model.safetensors", "bertjax.json"


def read_record(folder: os.PathLike) -> dict[str, Any]:
    """`format_version`, `config`, `vocab_size` and `numbers` of an export folder.

    Raises:
      UserError: no export, a damaged one, or one of a newer format.
    """
    folder = Path(folder)
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        version, _, _, _ = (record[key] for key in ("format_version", "config", "vocab_size", "numbers"))
    except FileNotFoundError as error:
        raise UserError(f"{folder} is no export: {RECORD} is missing") from error
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, error) from error
    if version > FORMAT_VERSION:
        raise UserError(
            f"{folder} has export format {version}, this bertjax reads up to {FORMAT_VERSION}; upgrade bertjax"
        )
    return record


def read_encoder(folder: os.PathLike) -> EncoderConfig:
    """The architecture of the encoder of an export folder.

    Raises:
      UserError: see `read_record`.
    """
    record = read_record(folder)
    try:
        settings = record["config"]["model"] | {"vocab_size": record["vocab_size"]}
    except (KeyError, TypeError) as error:
        raise _damaged(folder, error) from error
    return typed.build(EncoderConfig, settings, "model", {})


def read_params(folder: os.PathLike, encoder: EncoderConfig) -> dict:
    """Its params, float32 numpy arrays, the vocabulary padded as inside.

    Raises:
      UserError: they are missing or damaged.
    """
    try:
        flat = load_file(Path(folder) / WEIGHTS)
    except FileNotFoundError as error:
        raise UserError(f"{folder} is no export: {WEIGHTS} is missing") from error
    except (ValueError, SafetensorError) as error:
        raise _damaged(folder, error) from error
    return vocabulary.pad(unflatten_dict(flat, sep="/"), encoder)


def write_params(folder: os.PathLike, params: dict, encoder: EncoderConfig) -> None:
    """Writes params without the padding of the vocabulary."""
    flat = flatten_dict(vocabulary.cut(params, encoder), sep="/")
    save_file({path: np.ascontiguousarray(leaf) for path, leaf in flat.items()}, Path(folder) / WEIGHTS)


def write_record(folder: os.PathLike, record: dict[str, Any]) -> None:
    """Writes the record last of all, in one piece: without it a folder is no export."""
    draft = Path(folder) / f".{RECORD}.draft"
    draft.write_text(json.dumps({"format_version": FORMAT_VERSION} | record, indent=2, ensure_ascii=False) + "\n")
    draft.replace(Path(folder) / RECORD)


def _damaged(folder: os.PathLike, error: Exception) -> UserError:
    return UserError(f"the export {folder} is damaged ({error}); export it again from its run")
