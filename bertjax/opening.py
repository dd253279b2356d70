"""Opens a model by name, wherever it lies: an export, a run, or one of its checkpoints."""

import json
import os
from pathlib import Path
from typing import NamedTuple

from bertjax import export
from bertjax.config import Config, from_dict
from bertjax.data import tokenizer
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.models.encoder import Encoder

_RUN_RECORD = "config.json"


class Model(NamedTuple):
    """A pretrained encoder, ready for `module.apply({"params": params}, tokens_BT)`.

    Attributes:
      module: a Flax Linen `Encoder`.
      params: its parameters, a plain nested dict of float32 numpy arrays.
      tokenizer: text to ids and back.
    """

    module: Encoder
    params: dict
    tokenizer: Tokenizer


def split_name(name: str | os.PathLike) -> tuple[str, str]:
    """`RUN@STEP` as (path, step); the step is empty where none is named."""
    path, at, step = os.fspath(name).rpartition("@")
    path, step = (path, step) if at and "/" not in step else (os.fspath(name), "")
    return os.path.expanduser(path), step


def open_model(name: str | os.PathLike) -> export.Export:
    """Reads an export folder, the newest checkpoint of a run (`RUN`) or a certain one (`RUN@STEP`).

    Raises:
      UserError: nothing readable is there.
    """
    path, step = split_name(name)
    if not step and (Path(path) / export.RECORD).exists():
        return export.read(path)
    if not Path(path).is_dir():
        raise UserError(f"{path!r} does not exist; name an export folder, a workdir, or WORKDIR@STEP")
    if not (Path(path) / _RUN_RECORD).exists():
        raise UserError(f"{path!r} holds neither an export ({export.RECORD}) nor a run ({_RUN_RECORD})")
    from bertjax.training.run.record import read_checkpoint  # Orbax and a backend only where they are needed

    return read_checkpoint(Path(path), step)


def open_config(name: str | os.PathLike) -> Config:
    """The configuration of the run that an export folder, `RUN` or `RUN@STEP` comes from.

    Raises:
      UserError: nothing readable is there.
    """
    folder = Path(split_name(name)[0])
    record = next((folder / file for file in (export.RECORD, _RUN_RECORD) if (folder / file).exists()), None)
    if record is None:
        raise UserError(f"{str(folder)!r} holds neither an export ({export.RECORD}) nor a run ({_RUN_RECORD})")
    try:
        return from_dict(json.loads(record.read_text(encoding="utf-8"))["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{record} is damaged ({error}); restore it") from error


def open_tokenizer(name: str | os.PathLike) -> Tokenizer:
    """The tokenizer of an export folder, `RUN` or `RUN@STEP`.

    Raises:
      UserError: nothing readable is there.
    """
    folder = Path(split_name(name)[0])
    if not folder.is_dir():
        raise UserError(f"{str(folder)!r} does not exist; name an export folder, a workdir, or WORKDIR@STEP")
    return tokenizer.load(folder / "tokenizer")


def load(name: str | os.PathLike) -> Model:
    """Opens a pretrained encoder by the name of an export folder, `RUN` or `RUN@STEP`.

    Raises:
      UserError: nothing readable is there.
    """
    opened = open_model(name)
    return Model(Encoder(opened.encoder), opened.params["encoder"], opened.tokenizer)
