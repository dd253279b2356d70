"""`init_from`: initialize a new run with another model's weights; the optimizer starts from scratch.

With `init_state` it does not: see `bertjax.training.branch`.
"""

import functools
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.config.config import Config
from bertjax.config.export import Export
from bertjax.config.opening import SavedModel
from bertjax.data.labeled import labels
from bertjax.data.store import TokenStore
from bertjax.data.tokenizer import Tokenizer
from bertjax.models import disentangled_embeddings
from bertjax.models.config import EncoderConfig
from bertjax.models.other_heads import with_outputs
from bertjax.objectives.finetuning.base import ExampleObjective
from bertjax.objectives.finetuning.embeddings import EmbeddingClassification
from bertjax.objectives.finetuning.labels import Classification, MultiLabel, Tagging
from bertjax.objectives.wrapper import unwrapped
from bertjax.runtime.errors import UserError, shorten
from bertjax.training import word_vectors
from bertjax.training.compression import is_score
from bertjax.training.config import ROTARY_BASES
from bertjax.training.feeds import Feeds
from bertjax.training.lora import is_factor
from bertjax.training.parallel.sharding import shardings_of
from bertjax.training.param_paths import leaves_of, map_with_path, matches_any
from bertjax.training.run.fingerprints import fingerprints
from bertjax.training.run.record import RunRecord
from bertjax.training.setup import Setup, init_slots, init_state
from bertjax.training.state import State

_ENCODER, _POOLER = "encoder/", "encoder/pooler/"
# Settings that may differ from the source, because they do not change what the weights compute.
_FREE = ("vocab_size", "dropout", "attention_dropout", "init_stddev", "pooler_activation")
# Objectives with one head output per class; outputs are the last axis in all parameters of the last layer.
_OUTPUT_FOR_EACH_CLASS = (Classification, EmbeddingClassification, MultiLabel, Tagging)

log = logging.getLogger(__name__)


class Source(NamedTuple):
    """Initial weights.

    Attributes:
      params: {path: float32 array} for parameters that the new run also has; empty for a run that resumes or branches.
      fingerprint: their fingerprint, part of the run's identity; empty if the training text determines them.
    """

    params: dict[str, np.ndarray]
    fingerprint: str


def check(config: Config, resumed: RunRecord | None) -> None:
    """Check `init_from` as far as possible before data is prepared, which may take hours.

    Args:
      resumed: record of the run if it resumes from a checkpoint.

    Raises:
      UserError: `init_from` does not name a model, or no task trains the task embedding that finished models use.
    """
    if config.init_from and not resumed:
        # Reading the settings checks the folder and is fast; weights are read after the data is prepared.
        _ = SavedModel(config.init_from).settings
    task_types, tasks = config.model.embeddings.task_types, config.tasks.values()
    if task_types and not config.init_from and all(task.task_type for task in tasks):
        raise UserError(
            f"model.embeddings.task_types={task_types} and no task has task_type=0, which fine-tuning and predict "
            "use; set it for one of the tasks"
        )


def source_of(resumed: RunRecord | None, setups: Sequence[Setup], feeds: Feeds) -> Source | None:
    """Return initial weights, or None for random initialization.

    A run with a checkpoint starts from it. It reads the weights of `init_from` only if the path has changed, to compare
    their content, since the same model may be mounted elsewhere.

    Raises:
      UserError: see `read`.
    """
    config = setups[0].config
    if not (config.init_from or config.init_words):
        return None
    if resumed and (resumed.config.init_from, resumed.config.init_words) == (config.init_from, config.init_words):
        return Source({}, resumed.identity.get("init_from", ""))
    if config.init_words:
        if not isinstance(feeds.store, TokenStore):
            raise UserError("init_words=True counts a training text, and this run reads labeled files; leave it out")
        # Their last bits depend on the number of cores. The fingerprint of the store says what was counted.
        return Source(word_vectors.initial_params(feeds.store, setups[0], config.seed), "")
    source = read(setups[0], feeds.store.tokenizer)
    return source._replace(params={}) if resumed else source


def read(setup: Setup, tokenizer: Tokenizer) -> Source:
    """Return the weights of `init_from` that the run also has.

    The encoder must be the same, with four exceptions: layers that `init_layers` leaves out, a segment table that the
    new encoder lacks, rounding of activations that it adds, and other settings of rotary or relative positions, which
    are logged. Heads that are missing or have another shape or other
    classes (`match_heads`) are initialized from scratch, with a warning. So is a pooler that is missing, as in a
    checkpoint with only an MLM head, or has another activation.

    Raises:
      UserError: the source is not a model, or has another encoder or tokenizer.
    """
    config, encoder, shapes = setup.config, setup.encoder, setup.shapes["params"]
    name = config.init_from
    saved = SavedModel(name)
    if saved.tokenizer.fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"init_from={name} has another tokenizer than the corpus; set data.tokenizer.model={saved.folder}/tokenizer"
        )
    model = saved.export
    source = match_heads(_with_layers(model, config.init_layers), model.settings, config)
    source = _with_first_layers(source, shapes)
    if not encoder.embeddings.segments:
        source["encoder"]["embeddings"].pop("segment", None)
    if model.encoder.pooler_activation != encoder.pooler_activation:
        source["encoder"].pop("pooler", None)
    if disentangled_embeddings.ROOT in shapes:
        source = disentangled_embeddings.part(source)
    trees = leaves_of(source), leaves_of(shapes)
    theirs, ours = ({path: tuple(leaf.shape) for path, leaf in leaves.items()} for leaves in trees)
    # Exports have no LoRA factors or pruning scores: these keep their initial values.
    ours = {path: shape for path, shape in ours.items() if not is_factor(path) and not is_score(path)}
    differing = [path for path in sorted(theirs | ours) if theirs.get(path) != ours.get(path)]
    missing = {path for path in differing if path.startswith(_POOLER) and path not in theirs}
    if in_encoder := [path for path in differing if path.startswith(_ENCODER) and path not in missing]:
        shapes = [["x".join(map(str, of.get(path, ("none",)))) for of in (theirs, ours)] for path in in_encoder]
        changes = [f"{path} {own} -> {new}" for path, (own, new) in zip(in_encoder, shapes)]
        listed = shorten(changes, separator="; ")
        raise UserError(f"init_from={name} has another encoder ({listed}); use the same settings of model")
    check_function(model.encoder, setup)
    if new := [path for path in differing if path in ours]:
        log.warning("init_from=%s lacks %s: initialized from scratch", name, ", ".join(new))
    # A pooler starts from scratch in any fine-tuning, and `optimizer.frozen` may list what is to stay random.
    frozen_by_lora = () if config.optimizer.frozen else config.frozen
    if untrained := [path for path in new if matches_any(frozen_by_lora, path) and not path.startswith(_POOLER)]:
        raise UserError(
            f"init_from={name} lacks {untrained[0]}, which lora.rank={config.lora.rank} freezes: it would "
            "stay random; start from a model with its MLM head, or set optimizer.frozen=['^encoder/'] to train it"
        )
    # Gradient-disentangled sharing trains embeddings of the generator, and other generators read those of the encoder.
    left_out = [path for path in theirs if path.startswith("generator/encoder/embeddings/") and path not in ours]
    if left_out and "generator" in shapes:
        log.warning("init_from=%s has %s, which this run does not read: left out", name, ", ".join(left_out))
    # Heads that only the source has are left out without a warning: a new task does not need them.
    params = {path: leaf for path, leaf in trees[0].items() if path in ours and path not in new}
    _warn_of_pooler(config, params)
    return _source(params)


def _source(params: dict[str, np.ndarray]) -> Source:
    return Source(params, hashlib.sha256(json.dumps(fingerprints(params), sort_keys=True).encode()).hexdigest())


def check_function(source: EncoderConfig, setup: Setup) -> None:
    """Raise UserError if the encoder computes something else than that of `init_from` does with the same parameters.

    Other settings of positions are logged.
    """
    init_from, ours = setup.config.init_from, setup.encoder
    # No parameter depends on these: a run may read its source with other ones.
    positions = {
        *([] if ours.embeddings.has_position_table else ["max_positions"]),
        *(f"block.{name}" for name in ours.block.position_settings),
    }
    free = {
        *_FREE,
        *(["layers"] if setup.config.init_layers else []),
        *([] if ours.embeddings.segments else ["embeddings.segments"]),
        *(f"block.{name}" for name in ROTARY_BASES),  # those that no layer reads
        *([] if source.activation_bits else ["activation_bits"]),  # weights are trained to be read with rounding
    }
    differing, other = [], []
    for name, (theirs, own) in source.differences(ours).items():
        if name in positions:
            other.append(f"model.{name}={theirs} (this run has {own})")
        elif name not in free:
            differing.append(f"model.{name}={theirs} (not {own})")
    if differing:
        raise UserError(
            f"init_from={init_from} computes another function with these weights; set {' and '.join(differing)}"
        )
    if other:
        log.info("init_from=%s was trained with %s", init_from, " and ".join(other))


def state_from(source: Source | None, setup: Setup) -> State:
    """Return the state at step 0, with the weights of the source."""
    state = init_state(setup)
    if source is None:
        return state

    def fill(path: str, leaf: jax.Array) -> jax.Array:
        values = source.params.get(path)
        if values is None:
            return leaf
        # Each process fills only its own shards, so nothing is sent between hosts.
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, values.__getitem__)

    state |= {"params": map_with_path(fill, state["params"])}
    if "slots" in state:  # slots may hold copies of params, so they are computed from the new ones
        init = functools.partial(init_slots, setup.losses, setup.model_params)
        state |= {"slots": jax.jit(init, out_shardings=shardings_of(setup.shapes["slots"]))(state["params"])}
    return state


def _with_first_layers(source: dict, params: dict) -> dict:
    """Give label heads that the source lacks the first layer of its MLM head, which ModernBERT trains on.

    Its classes in transformers do the same: both heads have that layer under one name.
    """
    heads = source.get("heads", {})
    first = {name: heads["mlm"][name] for name in ("transform", "norm") if name in heads.get("mlm", {})}
    own = params.get("heads", {})
    lacking = [term for term in own.keys() - heads.keys() if first and {*first, "classifier"} == own[term].keys()]
    return source | {"heads": heads | dict.fromkeys(lacking, first)} if lacking else source


def _warn_of_pooler(config: Config, params: dict[str, np.ndarray]) -> None:
    """Warn if a head reads a frozen pooler that was never trained: its bias is still at its initial zeros."""
    is_random = not np.any(params.get(f"{_POOLER}bias", 0.0))
    is_frozen = matches_any(config.optimizer.frozen, f"{_POOLER}kernel")
    objectives = (unwrapped(task.objective) for task in config.tasks.values())
    is_read = any(isinstance(each, ExampleObjective) and each.reads_pooler for each in objectives)
    if config.model.block.has_pooler and is_random and is_frozen and is_read:
        log.warning(
            "init_from=%s has a pooler that was never trained, and optimizer.frozen=%s keeps it so: the head reads "
            "random features of [CLS]; set objective.pooling='mean' or objective.reads='mix'",
            config.init_from,
            list(config.optimizer.frozen),
        )


def _with_layers(model: Export, chosen: tuple[int, ...]) -> dict:
    """Return parameters with only the chosen layers, in this order; all layers if none is chosen."""
    params = jax.tree.map(lambda leaf: leaf, model.params)  # a copy of the dicts, not of the arrays
    layers, groups = model.encoder.layers, model.encoder.sharing_groups
    if not chosen:
        return params
    if outside := [layer for layer in chosen if not 0 <= layer < layers]:
        raise UserError(
            f"init_layers={list(chosen)} has {outside[0]}, and init_from has the layers 0 to {layers - 1}; choose "
            "among them"
        )
    if groups > 1:
        raise UserError(
            f"init_layers={list(chosen)} selects layers, and those of init_from share parameters in groups "
            f"(model.sharing_groups={groups}); set init_layers=[]"
        )
    # Parameters that all layers share are stored once.
    params["encoder"]["layers"] = jax.tree.map(
        lambda leaf: leaf[list(chosen)] if len(leaf) == layers else leaf, params["encoder"]["layers"]
    )
    return params


def match_heads(params: dict, settings: Mapping[str, Any], config: Config) -> dict:
    """Reorder head outputs in `init_from` parameters to match the run's classes.

    Published models order their labels arbitrarily, and a file may have the same number of other labels: copying head
    weights by shape would assign outputs to the wrong classes. Heads with other classes are dropped, so that the run
    initializes them. Both cases are logged.

    Args:
      params: nested source parameters; not modified.
      settings: the source's configuration.
      config: the run's configuration, with resolved classes.
    """
    tasks, has_own_heads = settings.get("tasks", {}), config.has_own_heads
    heads: dict[str, Any] = params.get("heads", {})
    for name, task in config.tasks.items():
        objective = unwrapped(task.objective)
        if not isinstance(objective, _OUTPUT_FOR_EACH_CLASS):
            continue
        term, of_task = objective.term, heads.get(name, {}) if has_own_heads else heads
        head = f"heads/{name}/{term}" if has_own_heads else f"heads/{term}"
        # With a single task its name does not matter: the source may have called it differently.
        source = tasks.get(name, {}) if has_own_heads else next(iter(tasks.values()), {})
        theirs, ours = tuple(source.get("objective", {}).get("classes", ())), objective.classes
        if term not in of_task or theirs == ours:  # the same names in the same order: the weights fit as they are
            continue
        index = labels.places_of(ours, theirs)
        if index is None:
            log.warning(
                "init_from=%s has the classes %s in %s and the run has %s: it starts with a new head",
                *(config.init_from, shorten(theirs, 8) or "none", head, shorten(ours, 8)),
            )
        else:
            log.info(
                "init_from=%s has the classes of %s as %s: its outputs are put into the order of the run, %s",
                *(config.init_from, head, shorten(theirs, 8), shorten(ours, 8)),
            )
        of_task = {**of_task, term: with_outputs(of_task[term], index)}
        heads = {**heads, name: of_task} if has_own_heads else of_task
    if heads is params.get("heads"):
        return params
    return unflatten_dict(flatten_dict({**params, "heads": heads}))  # without layers that are left out
