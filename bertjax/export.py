"""The format in which models leave a run: a folder with `model.safetensors`, `bertjax.json` and the tokenizer.

This is the only file that knows the format. Reading an export builds no run configuration, imports no class that the
export names, needs neither Grain nor Orbax and starts no backend.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bertjax import renames, storage, typed
from bertjax.data import tokenizer
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.models import vocabulary
from bertjax.models.config import EncoderConfig, Execution

FORMAT_VERSION = 1
WEIGHTS, MANIFEST = "model.safetensors", "bertjax.json"

_TOKENIZER = "tokenizer"


class Export(NamedTuple):
    """A trained model, as an export folder or a checkpoint holds it.

    Attributes:
      settings: the configuration of the run that made it, as `bertjax.config.to_dict` gives it.
      encoder: the encoder's architecture, with the size of the vocabulary.
      params: parameters of the encoder and the heads; the vocabulary is padded as in training.
      tokenizer: the tokenizer of its corpus.
      numbers: what the run measured.
    """

    settings: dict[str, Any]
    encoder: EncoderConfig
    params: dict
    tokenizer: Tokenizer
    numbers: dict[str, Any]


def write(folder: os.PathLike, export: Export) -> None:
    """Write a folder that `read` and `bertjax.load` open.

    The manifest comes last and in one piece: a folder without one is not an export.
    """
    folder = Path(folder)
    (folder / _TOKENIZER).mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    write_params(folder, export.params, export.encoder)
    export.tokenizer.save(folder / _TOKENIZER)
    write_manifest(folder, export.settings, export.encoder.vocab_size, export.numbers)


def read(folder: os.PathLike) -> Export:
    """Read an export folder.

    Raises:
      UserError: the folder is not an export, is damaged, or has a newer format.
    """
    manifest = read_manifest(folder)
    encoder = _encoder_of(manifest, folder)
    params = read_params(folder, encoder)
    return Export(manifest["config"], encoder, params, read_tokenizer(folder), manifest["numbers"])


def read_encoder(folder: os.PathLike) -> tuple[EncoderConfig, dict]:
    """Return the architecture of the encoder in an export folder, and the parameters of the encoder and the heads.

    Raises:
      UserError: the folder is not an export, is damaged, or has a newer format.
    """
    encoder = read_encoder_config(folder)
    return encoder, read_params(folder, encoder)


def read_encoder_config(folder: os.PathLike) -> EncoderConfig:
    """Return the architecture of the encoder in an export folder, without reading its parameters.

    Raises:
      UserError: the folder is not an export, is damaged, or has a newer format.
    """
    return _encoder_of(read_manifest(folder), folder)


def read_tokenizer(folder: os.PathLike) -> Tokenizer:
    """Return the tokenizer of an export folder or a workdir.

    Raises:
      UserError: files are missing or altered, or have a newer format.
    """
    return tokenizer.load(Path(folder) / _TOKENIZER)


def read_manifest(folder: os.PathLike) -> dict[str, Any]:
    """Return `format_version`, `config`, `vocab_size` and `numbers` of an export folder.

    Settings under an older name are returned under the one of today.

    Raises:
      UserError: the folder is not an export, is damaged, or has a newer format.
    """
    folder = Path(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version, config, _, _ = (manifest[key] for key in ("format_version", "config", "vocab_size", "numbers"))
        is_newer = version > FORMAT_VERSION
        if not isinstance(config, dict):
            raise TypeError("config does not hold settings by name")
    except FileNotFoundError as error:
        raise UserError(f"{folder} is not an export: {MANIFEST} is missing") from error
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, error) from error
    if is_newer:
        raise UserError(
            f"{folder} has export format {version}, this bertjax reads up to {FORMAT_VERSION}; upgrade bertjax"
        )
    return manifest | {"config": renames.current(config)}


def read_params(folder: os.PathLike, encoder: EncoderConfig) -> dict:
    """Return the parameters in an export folder as float32 numpy arrays, the vocabulary padded as in training.

    Raises:
      UserError: they are missing or damaged.
    """
    try:
        flat = load_file(Path(folder) / WEIGHTS)
    except FileNotFoundError as error:
        raise UserError(f"{folder} is not an export: {WEIGHTS} is missing") from error
    except (ValueError, SafetensorError) as error:
        raise _damaged(folder, error) from error
    return vocabulary.pad(unflatten_dict(flat, sep="/"), encoder)


def write_params(folder: os.PathLike, params: dict, encoder: EncoderConfig) -> None:
    """Write parameters without the padding of the vocabulary."""
    flat = flatten_dict(vocabulary.cut(params, encoder), sep="/")
    save_file({path: np.ascontiguousarray(leaf) for path, leaf in flat.items()}, Path(folder) / WEIGHTS)


def write_manifest(folder: os.PathLike, settings: dict[str, Any], vocab_size: int, numbers: dict[str, Any]) -> None:
    """Write the manifest in one piece."""
    manifest = {
        "format_version": FORMAT_VERSION,
        "config": settings,
        "vocab_size": vocab_size,
        "numbers": numbers,
    }
    storage.write_text(Path(folder) / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")


def encoder_of(settings: Mapping[str, Any], vocab_size: int) -> EncoderConfig:
    """Return the encoder that the settings of a run describe, executed as the run would execute it on a CPU.

    Args:
      settings: the configuration of the run as plain dicts; only `model` and `runtime` are read.
      vocab_size: V, the number of ids of the tokenizer.

    Raises:
      ValueError: `model` or `runtime` does not hold settings by name.
      UserError: a setting is wrong.
    """
    model, runtime = settings.get("model"), settings.get("runtime", {})
    if not isinstance(model, Mapping) or not isinstance(runtime, Mapping):
        raise ValueError("model or runtime does not hold settings by name")
    dtype, remat = runtime.get("dtype", "auto"), runtime.get("remat", "auto")
    execution = Execution(
        dtype="float32" if dtype == "auto" else dtype,
        unroll=runtime.get("unroll", False),
        remat="none" if remat == "auto" else remat,
    )
    model = {**model, "vocab_size": vocab_size}
    return dataclasses.replace(typed.build(EncoderConfig, model, "model", {}), execution=execution)


def _encoder_of(manifest: dict[str, Any], folder: os.PathLike) -> EncoderConfig:
    try:
        return encoder_of(manifest["config"], manifest["vocab_size"])
    except ValueError as error:
        raise _damaged(folder, error) from error


def _damaged(folder: os.PathLike, error: Exception) -> UserError:
    return UserError(f"the export {folder} is damaged ({error}); export it again from its run")
