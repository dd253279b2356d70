"""`init_from`: a new run that begins with the weights of another one, and with a fresh optimizer."""

import dataclasses
import hashlib
import json
import logging
from typing import Any

import jax
import numpy as np

from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, shorten
from bertjax.export import Export
from bertjax.models.config import EncoderConfig
from bertjax.opening import SavedModel
from bertjax.training.param_paths import map_with_path, path_of
from bertjax.training.program import Program
from bertjax.training.run.checkpoint import Checkpoints, fingerprints
from bertjax.training.run.record import read_record
from bertjax.training.run.workdir import Workdir
from bertjax.training.state import State

_ENCODER, _POOLER = "encoder/", "encoder/pooler/"
# What an encoder may be given anew: its parameters and what they compute do not follow from it.
_FREE = ("vocab_size", "dropout", "attention_dropout", "init_stddev", "execution")

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Source:
    """Weights to begin with.

    Attributes:
      params: {path: float32 array}, those that the new run has, too; none are read for a run that has begun.
      fingerprint: of them, part of the identity of the run.
    """

    params: dict[str, np.ndarray]
    fingerprint: str


def source_of(workdir: Workdir, program: Program, tokenizer: Tokenizer) -> Source | None:
    """What a run begins with, None where that is chance. A run that has saved a step does not need its source any more.

    Raises:
      UserError: see `read`.
    """
    name = program.config.init_from
    if not name:
        return None
    if workdir.config.exists() and Checkpoints(workdir.checkpoints).steps():
        record = read_record(workdir)
        return Source({}, record.identity.get("init_from", "") if record.config.init_from == name else name)
    return read(program, tokenizer)


def read(program: Program, tokenizer: Tokenizer) -> Source:
    """The weights that `init_from` names, as far as the run has them.

    The encoder must be the same, but for fewer layers where `init_every` takes one of several, and for a segment table
    where the new one has none. A head that the source lacks, or has in another shape, begins anew, and that is said; so
    does a pooler that it lacks, as a checkpoint with the MLM head alone.

    Raises:
      UserError: nothing readable is there, or it has another encoder or tokenizer.
    """
    name = program.config.init_from
    saved = SavedModel(name)
    if saved.tokenizer.fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"init_from={name} has another tokenizer than the corpus; set data.tokenizer.model={saved.folder}/tokenizer"
        )
    opened = saved.export
    source = _of_layers(opened, program.config.init_every)
    if not program.encoder.segments:
        source["encoder"]["embeddings"].pop("segment", None)
    found, wanted = _shapes(source), _shapes(program.abstract_state["params"])
    differs = [path for path in sorted(found | wanted) if found.get(path) != wanted.get(path)]
    lacking = {path for path in differs if path.startswith(_POOLER) and path not in found}
    if of_encoder := [path for path in differs if path.startswith(_ENCODER) and path not in lacking]:
        changes = [f"{path} {_said(found, path)} -> {_said(wanted, path)}" for path in of_encoder]
        named = shorten(changes, separator="; ")
        raise UserError(f"init_from={name} has another encoder ({named}); set model as it was set there")
    if other := _computes_otherwise(opened.encoder, program):
        raise UserError(f"init_from={name} computes something else with the same weights; set {' and '.join(other)}")
    if new := [path for path in differs if path in wanted]:
        log.warning("init_from=%s gives no %s: they begin anew", name, ", ".join(new))
    params = {path: leaf for path, leaf in _leaves(source) if path in wanted and path not in new}
    digest = hashlib.sha256(json.dumps(fingerprints(params), sort_keys=True).encode())
    return Source(params, digest.hexdigest())


def state_from(source: Source | None, program: Program) -> State:
    """The state at step 0, with the weights of the source."""
    state = program.init_state()
    if source is None:
        return state

    def fill(path: str, leaf: jax.Array) -> jax.Array:
        values = source.params.get(path)
        if values is None:
            return leaf
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, values.__getitem__)

    return state | {"params": map_with_path(fill, state["params"])}


def _leaves(params: dict) -> list[tuple[str, Any]]:
    return [(path_of(key_path), leaf) for key_path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]]


def _shapes(params: dict) -> dict[str, tuple[int, ...]]:
    return {path: tuple(leaf.shape) for path, leaf in _leaves(params)}


def _of_layers(opened: Export, every: int) -> dict:
    """Params with the first of `every` layers each."""
    layers = opened.encoder.layers
    if layers % every:
        raise UserError(
            f"init_every={every} does not divide the {layers} layers of init_from; use a divisor of {layers}"
        )
    params = jax.tree.map(lambda leaf: leaf, opened.params)  # its own dicts, to be cut
    params["encoder"]["layers"] = jax.tree.map(lambda leaf: leaf[::every], params["encoder"]["layers"])
    return params


def _computes_otherwise(source: EncoderConfig, program: Program) -> list[str]:
    """The settings of the source that are others here, though every array may have the same shape."""
    ours = program.encoder
    free = {*_FREE, *(["layers"] if program.config.init_every > 1 else []), *([] if ours.segments else ["segments"])}
    fields = (field.name for field in dataclasses.fields(EncoderConfig) if field.name not in free)
    return [
        f"model.{field}={getattr(source, field)} (not {getattr(ours, field)})"
        for field in fields
        if getattr(source, field) != getattr(ours, field)
    ]


def _said(shapes: dict[str, tuple[int, ...]], path: str) -> str:
    return "x".join(map(str, shapes[path])) if path in shapes else "none"
