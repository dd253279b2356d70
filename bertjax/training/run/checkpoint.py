"""Checkpoints: asynchronous, atomic, and verified when they are read. The only file that knows Orbax."""

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
    """The uint32 sum of all words, each mixed with its place first, so that no flipped bit and no swap goes unseen.

    For each place the mix is a bijection (the finaliser of MurmurHash3): one changed word always changes the sum.
    """
    words = jax.lax.bitcast_convert_type(leaf.ravel(), jnp.uint32).ravel()
    words ^= jax.lax.iota(jnp.uint32, words.size) * jnp.uint32(2654435761)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        words = (words ^ (words >> shift)) * jnp.uint32(factor)
    return jnp.sum(words ^ (words >> 16), dtype=jnp.uint32)


_fingerprint_tree = jax.jit(lambda tree: jax.tree.map(_leaf_fingerprint, tree))
# The next step donates the state's buffers; what is being written must not be among them.
_copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))


def fingerprints(tree: Any) -> dict[str, int]:
    """{path: fingerprint} of every leaf of 32-bit arrays."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(_fingerprint_tree(tree)))
    return {path_of(key_path): int(value) for key_path, value in leaves}


@dataclasses.dataclass(frozen=True)
class Restored:
    """A checkpoint that was read: the tree, and what was written beside it."""

    step: int
    tree: Any
    meta: dict


class Checkpoints:
    """The checkpoints of a workdir.

    Reading is each process's own, so that one that finds a damaged file leaves none waiting; those that read the state
    of a run agree afterward.
    Writing is everyone's, at the same steps.

    Args:
      folder: where they lie.
      keep: how many of the newest stay.
      every: so does one in every so many steps; 0 for none.
      best: and so do as many of those with the lowest score.
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
        alone = ocp.options.MultiprocessingOptions(
            primary_host=jax.process_index(), active_processes={jax.process_index()}, barrier_sync_key_prefix="read"
        )
        options = ocp.CheckpointManagerOptions(read_only=True, multiprocessing_options=alone)
        self._reader = self._open(options)

    def _open(self, options: ocp.CheckpointManagerOptions) -> ocp.CheckpointManager:
        return ocp.CheckpointManager(self._folder.absolute(), options=options, item_names=("state", "meta"))

    @functools.cached_property
    def _writer(self) -> ocp.CheckpointManager:
        return self._open(
            ocp.CheckpointManagerOptions(
                preservation_policy=self._policy, best_fn=self._rank, create=True, cleanup_tmp_directories=True
            )
        )

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, in order."""
        return sorted(self._reader.all_steps())

    def save(self, step: int, state: State, meta: dict, score: float | None = None) -> None:
        """Begins to write; `settle` waits for it.

        Args:
          step: which.
          state: after it.
          meta: plain JSON, kept beside the arrays.
          score: by which the best are told, the lower the better.

        Raises:
          RunFailed: the disk refused it, or the device has no room for a copy of the state.
        """
        meta = {"format_version": FORMAT_VERSION, "fingerprints": fingerprints(state), **meta}
        meta["digest"] = _digest(meta)
        metrics = None if score is None else {_SCORE: score}

        def begin() -> None:
            items = ocp.args.Composite(state=ocp.args.StandardSave(_copy(state)), meta=ocp.args.JsonSave(meta))
            self._writer.save(step, metrics=metrics, args=items, force=True)

        self._guarded(begin)

    def settle(self) -> None:
        """Waits for the save that is under way.

        Raises:
          RunFailed: the disk refused it.
        """
        if "_writer" in vars(self):
            self._guarded(self._writer.wait_until_finished)

    def _guarded(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except (OSError, ValueError, jax.errors.JaxRuntimeError) as error:
            # What was half written takes room, and a new manager begins by deleting it; the old one counts it as saved.
            vars(self).pop("_writer", None)  # none is there where it could not even begin
            if jax.process_count() == 1:  # a new one waits for all processes, and those that could write do not come
                with contextlib.suppress(OSError, ValueError):
                    _ = self._writer
            raise RunFailed(
                f"a checkpoint could not be written to {self._folder}: {_first_line(error)}; the older ones are kept"
            ) from error

    def restore_newest(self, abstract_state: Callable[[int], Any]) -> Restored | None:
        """The newest checkpoint that is whole; damaged ones are reported and set aside. None where there is none.

        Args:
          abstract_state: shapes, dtypes and shardings of the state after so many steps.

        Raises:
          UserError: there are checkpoints and none is whole, or the format is newer than this bertjax.
          RunFailed: the processes do not see the same checkpoints.
        """
        steps = self.steps()
        for index, seen in enumerate(processes.gather(steps)):
            if seen != steps:
                raise RunFailed(
                    f"process {index} sees the checkpoints {seen} in {self._folder} and this one {steps}; give the "
                    "same command again when the shared disk shows them the same"
                )
        damaged = []
        for step in reversed(steps):
            try:
                restored = self.restore(step, abstract_state(step))
            except Damaged as error:
                log.warning("checkpoint %d is damaged (%s); going on from the one before", step, error)
                damaged.append(step)
            else:
                # Only now: while none is whole, all stay where they are.
                processes.on_writer(lambda: [self._set_aside(later) for later in damaged])
                return restored
        if steps:
            raise UserError(f"no checkpoint in {self._folder} is whole; delete the workdir to start anew")
        return None

    def restore(self, step: int, abstract_state: Any = None) -> Restored:
        """Reads one checkpoint and verifies it.

        Args:
          step: which.
          abstract_state: shapes, dtypes and shardings to read it into, in all processes; None gives this one nested
            dicts and lists as saved.

        Raises:
          Damaged: it is not what was saved, here or as another process reads the state.
          UserError: its format is newer than this bertjax.
        """
        read, damage = self._read(step, abstract_state)
        # Who reads for itself, such as a source of weights, waits for nobody.
        gathered = [damage] if abstract_state is None else processes.gather(damage)
        if damages := [told for told in gathered if told]:
            raise Damaged(damages[0])
        meta, tree = read
        if meta["format_version"] > FORMAT_VERSION:
            raise UserError(
                f"checkpoint {step} in {self._folder} has format {meta['format_version']}, this bertjax reads up to "
                f"{FORMAT_VERSION}; upgrade bertjax"
            )
        found = fingerprints(tree)
        altered = [path for path, value in meta["fingerprints"].items() if found.get(path) != value]
        if altered:
            raise Damaged(f"{len(altered)} arrays are not what was saved, first {altered[0]}")
        return Restored(step, tree, meta)

    def _read(self, step: int, abstract_state: Any) -> tuple[tuple[dict, Any] | None, str]:
        """(what this process read of a checkpoint, what is damaged): without the arrays where their format is newer."""
        try:
            meta = self._reader.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]
            if meta.get("format_version", 0) > FORMAT_VERSION:
                return (meta, None), ""
            if meta.pop("digest", None) != _digest(meta):
                return None, "what stands beside the arrays is not what was saved"
            # Without an abstract state, this machine need not have the devices that the run had.
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
