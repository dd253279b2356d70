"""Checkpoints: asynchronous, atomic, and verified when they are read. The only file that knows Orbax."""

import dataclasses
import hashlib
import json
import logging
import time
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath

from bertjax.errors import RunFailed, UserError
from bertjax.training.paths import path_of
from bertjax.training.state import State

FORMAT_VERSION = 1

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

    Args:
      folder: where they lie.
      keep: how many of the newest stay; None only reads.
    """

    def __init__(self, folder: epath.Path, keep: int | None = None):
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, create=keep is not None, read_only=keep is None, cleanup_tmp_directories=keep is not None
        )
        self._folder = folder
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options, item_names=("state", "meta"))

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, in order."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: State, meta: dict) -> None:
        """Begins to write; the next save or `close` waits for it.

        Raises:
          RunFailed: the disk refused this save, or the one before.
        """
        meta = {"format_version": FORMAT_VERSION, "fingerprints": fingerprints(state), **meta}
        meta["digest"] = _digest(meta)
        items = ocp.args.Composite(state=ocp.args.StandardSave(_copy(state)), meta=ocp.args.JsonSave(meta))
        self._guarded(lambda: self._manager.save(step, args=items, force=True))

    def close(self) -> None:
        """Waits for the last save.

        Raises:
          RunFailed: the disk refused it.
        """
        self._guarded(self._manager.wait_until_finished)
        self._manager.close()

    def _guarded(self, action) -> None:
        try:
            action()
        except (OSError, ValueError) as error:
            raise RunFailed(
                f"a checkpoint could not be written to {self._folder}: {_first_line(error)}; the older ones are kept: "
                "make room and give the same command again"
            ) from error

    def restore_newest(self, abstract_state: Any) -> Restored | None:
        """The newest checkpoint that is whole; damaged ones are reported and set aside. None where there is none.

        Raises:
          UserError: there are checkpoints and none is whole, or the format is newer than this bertjax.
        """
        steps = self.steps()
        damaged = []
        for step in reversed(steps):
            try:
                restored = self.restore(step, abstract_state)
            except Damaged as error:
                log.warning("checkpoint %d is damaged (%s); going on from the one before", step, error)
                damaged.append(step)
            else:
                for later in damaged:  # only now: while none is whole, all stay where they are
                    self._set_aside(later)
                return restored
        if steps:
            raise UserError(f"no checkpoint in {self._folder} is whole; delete the workdir to start anew")
        return None

    def restore(self, step: int, abstract_state: Any = None) -> Restored:
        """Reads one checkpoint and verifies it.

        Args:
          step: which.
          abstract_state: shapes, dtypes and shardings to read it into; None gives nested dicts and lists as saved.

        Raises:
          Damaged: it is not what was saved.
          UserError: its format is newer than this bertjax.
        """
        try:
            meta = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]
        except Exception as error:  # Orbax raises whatever its storage layers raise.
            raise Damaged(_first_line(error)) from error
        if meta.get("format_version", 0) > FORMAT_VERSION:
            raise UserError(
                f"checkpoint {step} in {self._folder} has format {meta['format_version']}, this bertjax reads up to "
                f"{FORMAT_VERSION}; upgrade bertjax"
            )
        if meta.pop("digest", None) != _digest(meta):
            raise Damaged("what stands beside the arrays is not what was saved")
        try:
            # Without an abstract state, this machine need not have the devices that the run had.
            fallback = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract_state, fallback_sharding=fallback))
            tree = self._manager.restore(step, args=items)["state"]
        except Exception as error:
            raise Damaged(_first_line(error)) from error
        found = fingerprints(tree)
        altered = [path for path, value in meta["fingerprints"].items() if found.get(path) != value]
        if altered:
            raise Damaged(f"{len(altered)} arrays are not what was saved, first {altered[0]}")
        return Restored(step, tree, meta)

    def _set_aside(self, step: int) -> None:
        damaged = self._folder / str(step)
        damaged.rename(self._folder.with_name(f"{self._folder.name}.damaged-{step}-{int(time.time())}"))
        self._manager.reload()


class Damaged(UserError):
    """A checkpoint that cannot be trusted."""


def _digest(meta: dict) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
