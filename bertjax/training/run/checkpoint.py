"""Checkpoints: asynchronous, atomic, and verified when they are read. The only file that uses Orbax."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers as policy

from bertjax.errors import Damaged, RunFailed, UserError
from bertjax.training.parallel import processes
from bertjax.training.param_paths import path_of
from bertjax.training.state import State

FORMAT_VERSION = 1
_SCORE = "score"

log = logging.getLogger(__name__)


def _leaf_fingerprint(leaf: jax.Array) -> jax.Array:
    """Return the uint32 sum of all words, each mixed with its position first: flipped bits and swaps change it.

    For each position the mix is a bijection (the finalizer of MurmurHash3), so one changed word always changes the sum.
    """
    words = jax.lax.bitcast_convert_type(leaf.ravel(), jnp.uint32).ravel()
    words ^= jax.lax.iota(jnp.uint32, words.size) * jnp.uint32(2654435761)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        words = (words ^ (words >> shift)) * jnp.uint32(factor)
    return jnp.sum(words ^ (words >> 16), dtype=jnp.uint32)


_fingerprint_tree = jax.jit(lambda tree: jax.tree.map(_leaf_fingerprint, tree))
# The next step donates the state's buffers, so a checkpoint is written from a copy.
_copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))


def fingerprints(tree: Any) -> dict[str, int]:
    """Return {path: fingerprint} of every leaf; leaves are arrays of 32-bit values."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(_fingerprint_tree(tree)))
    return {path_of(key_path): int(value) for key_path, value in leaves}


@dataclasses.dataclass(frozen=True)
class Restored:
    """A checkpoint that was read: its tree of arrays, and its metadata."""

    step: int
    tree: Any
    meta: dict


class Checkpoints:
    """The checkpoints of a workdir.

    Each process reads on its own, so that one that finds a damaged file leaves no other waiting. Processes that restore
    the state of a run agree on the result afterwards. All processes write together, at the same steps.

    Args:
      folder: folder of the checkpoints.
      keep: number of newest checkpoints to keep.
      every: also keep one checkpoint in every so many steps; 0 for none.
      best: also keep so many checkpoints with the lowest score.
    """

    def __init__(self, folder: epath.Path, keep: int = 1, every: int = 0, best: int = 0):
        self._folder = folder
        policies = [policy.LatestN(keep)]
        if every:
            policies.append(policy.EveryNSteps(every, exact_interval=False))
        if best:
            policies.append(
                policy.BestN(get_metric_fn=_score_of, reverse=True, n=best, keep_checkpoints_without_metrics=False)
            )
        self._policy = policy.AnyPreservationPolicy(policies)
        self._rank = _score_of if best else None
        single_process = ocp.options.MultiprocessingOptions(
            primary_host=jax.process_index(), active_processes={jax.process_index()}, barrier_sync_key_prefix="read"
        )
        options = ocp.CheckpointManagerOptions(read_only=True, multiprocessing_options=single_process)
        self._reader = self._open(options)

    def _open(self, options: ocp.CheckpointManagerOptions) -> ocp.CheckpointManager:
        return ocp.CheckpointManager(self._folder.absolute(), options=options, item_names=("state", "meta"))

    @functools.cached_property
    def _writer(self) -> ocp.CheckpointManager:
        return self._open_writer()

    def _open_writer(self) -> ocp.CheckpointManager:
        return self._open(
            ocp.CheckpointManagerOptions(
                preservation_policy=self._policy, best_fn=self._rank, create=True, cleanup_tmp_directories=True
            )
        )

    def steps(self) -> list[int]:
        """Return the steps of the finished checkpoints, in order."""
        return sorted(self._reader.all_steps())

    def save(self, step: int, state: State, meta: dict, score: float | None = None) -> None:
        """Start to write a checkpoint; `settle` waits until it is written.

        Args:
          state: the state after `step` steps.
          meta: JSON metadata, stored with the arrays.
          score: the value by which the best checkpoints are chosen; lower is better.

        Raises:
          RunFailed: the disk cannot store it, or the device has no memory for a copy of the state.
        """
        meta = {"format_version": FORMAT_VERSION, "fingerprints": fingerprints(state), **meta}
        meta["digest"] = _digest(meta)
        metrics = None if score is None else {_SCORE: score}

        def start() -> None:
            items = ocp.args.Composite(state=ocp.args.StandardSave(_copy(state)), meta=ocp.args.JsonSave(meta))
            self._writer.save(step, metrics=metrics, args=items, force=True)

        self._guarded(start)

    def settle(self) -> None:
        """Wait until the checkpoint that is being written is complete.

        Raises:
          RunFailed: the disk cannot store it.
        """
        if "_writer" in vars(self):
            self._guarded(self._writer.wait_until_finished)

    def _guarded(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except (OSError, ValueError, jax.errors.JaxRuntimeError) as error:
            # The half-written checkpoint takes space. A new manager deletes it first; the old one counts it as saved.
            vars(self).pop("_writer", None)  # it is missing if the manager itself could not be created
            if jax.process_count() == 1:  # a new one waits for all processes, but those that could write are not here
                with contextlib.suppress(OSError, ValueError):
                    self._writer = self._open_writer()
            raise RunFailed(
                f"a checkpoint could not be written to {self._folder}: {_first_line(error)}; the older ones are kept"
            ) from error

    def restore_newest(self, abstract_state: Callable[[int], Any]) -> Restored | None:
        """Return the newest undamaged checkpoint, or None if there are no checkpoints.

        Damaged checkpoints are logged and renamed.

        Args:
          abstract_state: returns the shapes, dtypes and shardings of the state after a number of steps.

        Raises:
          UserError: all checkpoints are damaged, or the format is newer than this bertjax.
          RunFailed: the processes do not see the same checkpoints.
        """
        steps = self.steps()
        for index, others in enumerate(processes.gather(steps)):
            if others != steps:
                raise RunFailed(
                    f"process {index} sees the checkpoints {others} in {self._folder} and this one {steps}; run the "
                    "same command again when the shared disk shows both the same"
                )
        damaged = []
        for step in reversed(steps):
            try:
                restored = self.restore(step, abstract_state(step))
            except Damaged as error:
                log.warning("checkpoint %d is damaged (%s); continuing from the one before", step, error)
                damaged.append(step)
            else:
                # Only now: if all are damaged, none is renamed.
                processes.on_writer(lambda: [self._set_aside(later) for later in damaged])
                return restored
        if steps:
            raise UserError(f"every checkpoint in {self._folder} is damaged; start again in another --workdir")
        return None

    def restore(self, step: int, abstract_state: Any = None) -> Restored:
        """Read one checkpoint and verify it.

        Args:
          abstract_state: shapes, dtypes and shardings of the arrays, read in all processes. With None, only this
            process reads, and the arrays come in nested dicts and lists as they were saved.

        Raises:
          Damaged: the checkpoint is not what was saved, in this process or in another that reads it.
          UserError: its format is newer than this bertjax.
        """
        content, damage = self._read(step, abstract_state)
        # A process that reads weights for itself does not wait for the others.
        gathered = [damage] if abstract_state is None else processes.gather(damage)
        if damages := [reason for reason in gathered if reason]:
            raise Damaged(damages[0])
        meta, tree = content
        if meta["format_version"] > FORMAT_VERSION:
            raise UserError(
                f"checkpoint {step} in {self._folder} has format {meta['format_version']}, this bertjax reads up to "
                f"{FORMAT_VERSION}; upgrade bertjax"
            )
        actual = fingerprints(tree)
        altered = [path for path, value in meta["fingerprints"].items() if actual.get(path) != value]
        if altered:
            raise Damaged(f"{len(altered)} arrays are not what was saved, first {altered[0]}")
        return Restored(step, tree, meta)

    def _read(self, step: int, abstract_state: Any) -> tuple[tuple[dict, Any] | None, str]:
        """Return ((metadata, arrays), what is damaged); the arrays are None if their format is newer."""
        try:
            meta = self._reader.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]
            if meta.get("format_version", 0) > FORMAT_VERSION:
                return (meta, None), ""
            if meta.pop("digest", None) != _digest(meta):
                return None, "its metadata is not what was saved"
            # Without an abstract state, this machine may have other devices than the run had.
            fallback = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract_state, fallback_sharding=fallback))
            return (meta, self._reader.restore(step, args=items)["state"]), ""
        except Exception as error:  # Orbax raises whatever its storage layers raise.
            return None, _first_line(error)

    def _set_aside(self, step: int) -> None:
        damaged = self._folder / str(step)
        damaged.rename(self._folder.with_name(f"{self._folder.name}.damaged-{step}-{int(time.time())}"))


def _score_of(metrics: dict) -> float:
    return metrics[_SCORE]


def _digest(meta: dict) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
