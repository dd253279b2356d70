"""The export format, in which models leave a run: a folder with `model.safetensors`, `bertjax.json` and the tokenizer.

Only this file knows the format. Reading an export builds no run configuration, imports no class that the export names,
needs neither Grain nor Orbax and starts no backend. The files are untrusted: sizes, types and shapes are checked before
use.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from flax.core import FrozenDict
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from bertjax.config import private_paths, typed
from bertjax.data import tokenizer
from bertjax.data.tokenizer import Tokenizer
from bertjax.models import int8, vocabulary
from bertjax.models.config import UNIONS, EncoderConfig, Execution
from bertjax.models.vocabulary import encoder_shapes
from bertjax.runtime import storage, untrusted
from bertjax.runtime.errors import Untrusted, UserError, check_format, json_text, quoted, reason, shorten

FORMAT_VERSION = 1
WEIGHTS, MANIFEST = "model.safetensors", "bertjax.json"

_TOKENIZER = "tokenizer"
# What every manifest has.
_ENTRIES = {"format_version": int, "config": dict, "vocab_size": int, "numbers": dict}
# The only part of the encoder that an export may lack.
_POOLER = "pooler/"
_ROOTS = ("encoder", "heads", "generator")
# `bertjax.objectives.distill.distilled.PROJECTIONS`
_PROJECTIONS = "projections"
# Settings of a stage that trains the whole model (`bertjax.training.config.Stage`).
WHOLE_MODEL = {"layers": 0, "rotary_base": 0.0, "local_rotary_base": 0.0}
# Prefix of the objectives on sentence embeddings, and the only one that does not compare them by cosine.
_EMBEDDING, _COMPARES_LENGTHS = "embedding_", "embedding_classification"
# Upper bound for every size of an encoder; JAX indexes in int32.
_LARGEST = 2**30


class Lengths(NamedTuple):
    """How much text a model reads at once.

    Attributes:
      row: T, maximum tokens of the examples that are computed together, such as the choices of a question.
      example: maximum tokens per example, special tokens included.
    """

    row: int
    example: int


class Export(NamedTuple):
    """A trained model, from an export folder or a checkpoint.

    Attributes:
      settings: configuration of the run that trained it, from `config.to_dict`. It documents the model; only
        `read_settings` may be acted upon.
      encoder: the encoder's architecture, vocabulary size included.
      params: parameters of the encoder and the heads; the vocabulary is padded as in training.
      tokenizer: the tokenizer.
      numbers: the run's measurements.
      modules: {user module that the settings name: `sha256` of its file, `commit` and `version`}, as in training.
      unit_embeddings: whether a converted model scales its embeddings to length 1, which no setting of a run records.
    """

    settings: dict[str, Any]
    encoder: EncoderConfig
    params: dict
    tokenizer: Tokenizer
    numbers: dict[str, Any]
    modules: Mapping[str, Mapping[str, str]] = FrozenDict()
    unit_embeddings: bool = False

    @property
    def read_settings(self) -> dict[str, Any]:
        """The settings that a configuration may be built from (`private_paths.read_from_export`)."""
        return private_paths.read_from_export(self.settings)

    @property
    def lengths(self) -> Lengths:
        """How much text every use of the model reads: inference, evaluation and all files for other libraries.

        A model of labeled files reads rows of the last stage that trained the task, because its scores are those of
        texts that were cut there. Any other model reads as much as it has positions, or `examples.max_tokens`.

        Raises:
          UserError: the settings are damaged.
        """
        try:
            settings = self.read_settings
            stages = settings.get("stages", [])
            tasks = settings["tasks"].items()
            lengths = [_lengths_of(name, task, stages, self.encoder) for name, task in tasks]
            return Lengths(*map(max, zip(*lengths, strict=True)))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise UserError(f"the settings of the model are damaged ({reason(error)}); export it again") from error

    @property
    def is_embedder(self) -> bool:
        """Whether the model was trained for sentence embeddings."""
        return self.unit_embeddings or self._first_kind.startswith(_EMBEDDING)

    @property
    def is_normalized(self) -> bool:
        """Whether sentence embeddings have length 1: the objective compares them by cosine only."""
        return self.is_embedder and self._first_kind != _COMPARES_LENGTHS

    @property
    def _first_kind(self) -> str:
        try:
            [task, *_] = self.settings["tasks"].values()
            return str(task["objective"]["kind"])
        except (KeyError, ValueError, TypeError, AttributeError):  # untrusted settings may be malformed
            return ""


# The remedy for weights of a run that diverged.
EARLIER = "take an earlier RUN@STEP"


def write(folder: os.PathLike, export: Export, quantized: bool = False) -> None:
    """Write a folder that `read` and `bertjax.load` open, without any path of this machine (`private_paths`).

    The manifest is written last and atomically: a folder without one is not an export.

    Args:
      folder: the folder; it is created.
      export: the model.
      quantized: whether to store kernels and word embeddings as int8 (`bertjax.models.int8`).
    """
    folder = Path(folder)
    (folder / _TOKENIZER).mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)  # an old manifest must not describe half-written new weights
    flat = cast(dict[str, np.ndarray], flatten_dict(vocabulary.cut(export.params, export.encoder), sep="/"))
    write_tensors(folder / WEIGHTS, int8.quantize(flat) if quantized else flat)
    export.tokenizer.save(folder / _TOKENIZER)
    manifest: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "config": private_paths.without(export.settings),
        "vocab_size": export.encoder.vocab_size,
        "numbers": export.numbers,
        "weights": _digest(folder / WEIGHTS),
    }
    manifest |= {"modules": export.modules} if export.modules else {}
    manifest |= {"unit_embeddings": True} if export.unit_embeddings else {}
    storage.flush_folder(folder)  # the manifest must not survive a crash of the machine without the weights
    storage.write_text(folder / MANIFEST, json_text(manifest, indent=2) + "\n")


def set_objective(folder: os.PathLike, task: str, values: Mapping[str, Any]) -> None:
    """Change settings of a task's objective in the manifest of an export, such as a threshold."""
    manifest = read_manifest(folder)
    manifest["config"]["tasks"][task]["objective"] |= values
    storage.write_text(Path(folder) / MANIFEST, json_text(manifest, indent=2) + "\n")


def is_whole(folder: Path, steps: int) -> bool:
    """Return whether a folder is the export of a run after so many steps, with the weights that were written.

    Raises:
      StorageError: a file is there and cannot be read.
    """
    files = [folder / MANIFEST, folder / WEIGHTS]
    if not all(storage.exists(path) for path in files):
        return False
    storage.read_bytes(files[0])  # an error of the disk is not a damaged file
    try:
        manifest, _ = read_manifest(folder), read_tokenizer(folder)
    except UserError:
        return False
    with storage.storage_errors(files[1]):
        return manifest["numbers"].get("steps") == steps and manifest.get("weights") == _digest(files[1])


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(folder: os.PathLike) -> Export:
    """Read an export folder.

    Raises:
      UserError: the folder is not an export, is damaged, or has another format.
    """
    manifest = read_manifest(folder)
    encoder = _encoder_of(manifest, folder)
    tokens = read_tokenizer(folder)
    # JAX raises no error for an id outside of the table, so check here.
    if tokens.vocab_size != encoder.vocab_size:
        ids = f"its tokenizer has {tokens.vocab_size} ids and {MANIFEST} {encoder.vocab_size}"
        raise _damaged(folder, ValueError(ids))
    more = manifest.get("modules", {}), manifest.get("unit_embeddings") is True
    return Export(manifest["config"], encoder, read_params(folder, encoder), tokens, manifest["numbers"], *more)


def exported(params: dict) -> dict:
    """Drop the parameters of teacher losses, which only training reads."""
    return {root: values for root, values in params.items() if root != _PROJECTIONS}


def read_tokenizer(folder: os.PathLike) -> Tokenizer:
    """Return the tokenizer of an export folder or a workdir.

    Raises:
      UserError: files are missing or altered, or have another format.
    """
    return tokenizer.load(Path(folder) / _TOKENIZER)


def read_manifest(folder: os.PathLike) -> dict[str, Any]:
    """Return the manifest: `format_version`, `config`, `vocab_size`, `numbers`; if needed `modules`, `unit_embeddings`.

    Raises:
      UserError: the folder is not an export, is damaged, or has another format.
    """
    folder = Path(folder)
    try:
        manifest = untrusted.read_json(folder / MANIFEST)
        # Check types before use: an untrusted manifest may hold anything.
        for key, kind in _ENTRIES.items():
            _check_entry(manifest, key, kind)
        _check_entry({"modules": {}, **manifest}, "modules", dict)
        _check_entry({"tasks": {}, **manifest["config"]}, "tasks", dict)
        for name, task in manifest["config"].get("tasks", {}).items():  # read without building a configuration
            _check_entry({name: task}, name, dict)
            _check_entry({"objective": {}, **task}, "objective", dict)
            _check_entry({"classes": [], **task.get("objective", {})}, "classes", list)
    except FileNotFoundError as error:
        raise UserError(f"{folder} is not an export: {MANIFEST} is missing") from error
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(folder, error) from error
    check_format(f"the export {folder}", manifest["format_version"], FORMAT_VERSION)
    return manifest


def read_params(folder: os.PathLike, encoder: EncoderConfig) -> dict:
    """Return an export's parameters as float32 numpy arrays, with the vocabulary padded as in training.

    Raises:
      UserError: they are missing or damaged.
    """
    try:
        # safetensors holds arrays only: unlike pickle, reading it runs no code.
        flat = int8.dequantize(load_file(untrusted.regular_file(Path(folder) / WEIGHTS)))
        _check_params(flat, encoder)
    except FileNotFoundError as error:
        raise UserError(f"{folder} is not an export: {WEIGHTS} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise _damaged(folder, error) from error
    check_finite(flat, f"the export {folder}", EARLIER)
    return vocabulary.pad(unflatten_dict(flat, sep="/"), encoder)


def check_finite(arrays: Mapping[str, np.ndarray], owner: str, remedy: str) -> None:
    """Raise UserError if weights have NaN or infinity, with which the first class would always win.

    Args:
      arrays: weights by name.
      owner: what has them, the subject of the message.
      remedy: what the user can do.
    """
    if diverged := sorted(name for name, array in arrays.items() if not np.isfinite(array).all()):
        raise UserError(f"{owner} has values that are not finite in {shorten(diverged)}; {remedy}")


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file with default permissions; the library would make it readable by its owner only."""
    # An empty file shows the permissions that the umask gives.
    path.unlink(missing_ok=True)
    path.touch()
    permissions = path.stat().st_mode & 0o777
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path, metadata)
    path.chmod(permissions)


def is_quantized(folder: os.PathLike) -> bool:
    """Return whether a folder is an export with int8 weights.

    Raises:
      UserError: its weights are missing or damaged.
    """
    if not (Path(folder) / MANIFEST).exists():
        return False
    try:
        with safe_open(untrusted.regular_file(Path(folder) / WEIGHTS), "numpy") as tensors:
            # A slice reads the header only, not the weights.
            return any(tensors.get_slice(name).get_dtype() == "I8" for name in tensors.keys())
    except (OSError, SafetensorError) as error:
        raise _damaged(folder, error) from error


def with_encoder(model: Export, encoder: EncoderConfig, params: dict) -> Export:
    """Return a model with another encoder, in its settings too.

    Settings of a run describe the encoder of its last stage. Those of a model from an earlier one get its own encoder
    in all stages, with which a continued run starts.
    """
    before, after = model.settings["model"], encoder.architecture()
    settings = model.settings | {"model": before | after}
    if any(before.get(name, after[name]) != after[name] for name in ("layers", "block")):
        stages = [stage | WHOLE_MODEL | {"frozen_layers": 0} for stage in settings.get("stages", [])]
        settings |= {"stages": stages, "init_layers": []}
    return model._replace(settings=settings, encoder=encoder, params=params)


def encoder_of(settings: Mapping[str, Any], vocab_size: int) -> EncoderConfig:
    """Return the encoder in a run's settings, with the execution options that the run would choose on a CPU.

    Args:
      settings: the run's configuration as plain dicts; only `model` and `runtime` are read.
      vocab_size: V, the tokenizer's number of ids.

    Raises:
      ValueError: `model` or `runtime` is not a mapping.
      UserError: a setting is wrong.
    """
    model, runtime = settings.get("model"), settings.get("runtime", {})
    if not isinstance(model, Mapping) or not isinstance(runtime, Mapping):
        raise ValueError("model or runtime does not hold settings by name")
    dtype, remat = (typed.build(str, runtime.get(name, "auto"), f"runtime.{name}", {}) for name in ("dtype", "remat"))
    execution = Execution(
        dtype="float32" if dtype == "auto" else dtype,
        unroll=typed.build(bool, runtime.get("unroll", False), "runtime.unroll", {}),
        remat="none" if remat == "auto" else remat,
    )
    encoder = typed.build(EncoderConfig, {**model, "vocab_size": vocab_size}, "model", UNIONS)
    for name, value in encoder.settings().items():
        if isinstance(value, int) and value > _LARGEST:
            raise ValueError(f"model.{name}={quoted(value)} is larger than any encoder")
    if vocab_size < 1:
        raise ValueError(f"vocab_size={vocab_size} is not a number of tokens")
    return dataclasses.replace(encoder, execution=execution)


def _lengths_of(name: str, task: Mapping[str, Any], stages: list, encoder: EncoderConfig) -> Lengths:
    """Return `Export.lengths` of one task."""
    # Imported here: `bertjax.load` needs no format.
    from bertjax.data.formats import FORMATS, ExampleFormat
    from bertjax.data.labeled.base import LabeledFormat

    most, objective = encoder.max_positions, task.get("objective", {})
    unions = {FORMATS.base: FORMATS.choice()}
    try:
        examples = typed.build(ExampleFormat, task.get("examples", {}), f"tasks.{name}.examples", unions)
    except Untrusted:  # what needs only the encoder works without the module of a user's format
        return Lengths(most, most)
    if not isinstance(examples, LabeledFormat):
        return Lengths(*[min(examples.max_tokens or most, most)] * 2)
    row = next((stage["seq_len"] for stage in reversed(stages) if name in (stage.get("tasks") or [name])), most)
    # With a teacher, the objective is inside of another one.
    group = examples.group_of([], objective.get("objective", objective).get("classes") or ("",))
    if encoder.embeddings.has_position_table:  # a damaged manifest must not ask for positions without a row
        row = min(row, group * most)
    return Lengths(row, min(examples.longest(row), row // group))


def _encoder_of(manifest: dict[str, Any], folder: os.PathLike) -> EncoderConfig:
    try:  # `read_from_export` drops `runtime`: this machine decides dtype and remat
        return encoder_of(private_paths.read_from_export(manifest["config"]), manifest["vocab_size"])
    except ValueError as error:
        raise _damaged(folder, error) from error


def _damaged(folder: os.PathLike, error: Exception) -> UserError:
    return UserError(f"the export {folder} is damaged ({reason(error)}); export it again from its run")


def _check_entry(manifest: Any, key: str, kind: type) -> None:
    """Raise ValueError if a manifest lacks an entry, or it has another type."""
    if not isinstance(manifest, dict) or key not in manifest:
        raise ValueError(f"{MANIFEST} has no {key}")
    # `isinstance` would accept True as an integer.
    if type(manifest[key]) is not kind:
        raise ValueError(f"{key}={quoted(manifest[key])} is not of type {kind.__name__}")


def _check_params(flat: Mapping[str, np.ndarray], encoder: EncoderConfig) -> None:
    """Raise ValueError unless these are exactly the encoder's parameters, plus heads with the same vocabulary."""
    paths = {path: path.split("/") for path in flat}
    # `a` and `a/b` cannot both be arrays: unflattening would lose one of them.
    folders = {"/".join(parts[:length]) for parts in paths.values() for length in range(1, len(parts))}
    for path, parts in paths.items():
        if parts[0] not in _ROOTS or not all(parts) or path in folders:
            raise ValueError(f"{WEIGHTS} has the array {quoted(path)}, which no model has")
        if flat[path].dtype != np.float32:
            raise ValueError(f"the array {path} is {flat[path].dtype}, not float32")
        # Heads and generator are not in `encoder_shapes`; their tables must fit the vocabulary too.
        if parts[-1].startswith("word") and flat[path].shape[:1] != (encoder.vocab_size,):
            raise ValueError(f"the array {path} has no row for each of the {encoder.vocab_size} tokens")
    expected = encoder_shapes(encoder)
    shapes = {path.removeprefix("encoder/"): flat[path].shape for path in flat if path.startswith("encoder/")}
    if not any(path.startswith(_POOLER) for path in shapes):  # for example a converted DistilBERT
        expected = {path: shape for path, shape in expected.items() if not path.startswith(_POOLER)}
    differing = sorted(path for path in expected | shapes if expected.get(path) != shapes.get(path))
    if differing:
        changes = [f"{quoted(path)} {_text(expected.get(path))} -> {_text(shapes.get(path))}" for path in differing]
        raise ValueError(f"the encoder of {MANIFEST} has other arrays than {WEIGHTS}: {shorten(changes, 2, '; ')}")


def _text(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else "x".join(map(str, shape)) or "a number"
