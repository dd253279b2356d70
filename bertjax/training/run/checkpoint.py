"""Checkpoints: asynchronous, atomic, and verified on reading. The only file that uses Orbax."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers as policy

from bertjax.config.typed import differences
from bertjax.runtime import storage
from bertjax.runtime.errors import Damaged, RunFailed, UserError, check_format, shorten
from bertjax.training.parallel import processes
from bertjax.training.param_paths import leaves_of
from bertjax.training.run.checkpoint_errors import explain, not_read, why_not_written
from bertjax.training.run.fingerprints import check_replicas, fingerprints
from bertjax.training.state import State

FORMAT_VERSION = 2

# Seconds before a reader retries: a live run may be deleting the checkpoint file by file.
_PAUSE = 1.0

# A power failure may destroy the newest checkpoint, because not all of its files are flushed to disk.
_MIN_NEWEST = 2

log = logging.getLogger(__name__)


# The next step donates the state's buffers, so a background write needs its own copy. If host and device share memory,
# this function makes it. On an accelerator all arrays are on the host when `CheckpointManager.save` returns, unless
# Orbax has a dispatcher or a byte limit: in 0.12.8, `_serialize_arrays_batches_without_dispatcher`
# (jax_array_handlers.py) first calls `transfer_arrays_to_host` (replica_slices.py, "Blocks until completion").
_copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))


class _Manager(ocp.CheckpointManager):
    """Orbax's manager without its preemption check: `processes.StopTogether` owns JAX's counter for that."""

    def reached_preemption(self, step: int) -> bool:
        return False


@dataclasses.dataclass
class _Preservation(policy.PreservationPolicy):
    """Tells Orbax which checkpoints to keep.

    Args:
      kept: returns the steps to keep among these.
    """

    kept: Callable[[list[int]], set[int]]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        kept = self.kept([info.step for info in checkpoints])
        return [info.step in kept for info in checkpoints]


class RestoredCheckpoint(NamedTuple):
    """A restored checkpoint: the tree of arrays, and the metadata."""

    step: int
    tree: Any
    meta: dict


class NotSaved(RunFailed):
    """A checkpoint could not be written; the older ones are kept."""


class _Differs(RunFailed):
    """Only some processes read what was saved."""


@dataclasses.dataclass(frozen=True)
class Retention:
    """Which checkpoints to keep; a checkpoint stays if any field asks for it.

    Attributes:
      newest: number of newest checkpoints, at least two.
      every: the first checkpoint at or after each multiple of this many steps; 0 for none.
      best: number of checkpoints with the lowest scores.
      at: the checkpoints at these steps.
    """

    newest: int = 1
    every: int = 0
    best: int = 0
    at: tuple[int, ...] = ()

    def kept(
        self, steps: Sequence[int], scores: Mapping[int, float | None], hold_before: int | None = None
    ) -> set[int]:
        """Return the steps to keep.

        Args:
          steps: steps of all checkpoints, in order.
          scores: {step: score}, lower is better; None or absent without a score.
          hold_before: also keep the newest checkpoints up to this step, from before a loss diverged; None for none.
        """
        kept = {*steps[-max(self.newest, _MIN_NEWEST) :], *self.at}
        if self.every:
            # Orbax's `EveryNSteps` keeps exact multiples only, which `save_seconds` may never save. With
            # `exact_interval=False`, what it keeps depends on where earlier starts stopped.
            multiples = [0, *(step // self.every for step in steps)]
            kept |= {step for step, (before, own) in zip(steps, itertools.pairwise(multiples)) if own > before}
        # Orbax's `BestN` reads scores from the checkpoints, so a state could only be saved after its evaluation.
        scored = sorted((scores[step], step) for step in steps if scores.get(step) is not None)
        kept |= {step for _, step in scored[: self.best]}  # of equal scores, the earlier step
        if hold_before is not None:
            kept |= {*[step for step in steps if step <= hold_before][-self.newest :]}
        return kept & set(steps)


class Checkpoints:
    """The checkpoints in a workdir.

    Each process reads on its own, so that no process waits for one that finds a damaged file. Processes that restore
    the state of a run agree on the result before any of them continues. All write together, at the same steps.

    Args:
      folder: checkpoint folder.
      retention: which checkpoints to keep; None for only the newest ones.

    Attributes:
      scores: {step: score} for evaluated states, None without a score. A checkpoint may be saved before its score is
        known; all processes must set the same scores before the next save.
      hold_before: see `Retention.kept`; all processes must set the same step.
    """

    def __init__(self, folder: epath.Path, retention: Retention | None = None):
        self._folder, self._retention = folder, retention or Retention()
        self.scores: dict[int, float | None] = {}
        self.hold_before: int | None = None

    @functools.cached_property
    def _reader(self) -> _Manager:
        single_process = ocp.options.MultiprocessingOptions(
            primary_host=jax.process_index(), active_processes={jax.process_index()}, barrier_sync_key_prefix="read"
        )
        options = ocp.CheckpointManagerOptions(read_only=True, multiprocessing_options=single_process)
        return storage.retry(lambda: self._open(options), self._folder)

    @functools.cached_property
    def _writer(self) -> _Manager:
        kept = _Preservation(lambda steps: self._retention.kept(steps, self.scores, self.hold_before))
        return self._open(
            ocp.CheckpointManagerOptions(preservation_policy=kept, create=True, cleanup_tmp_directories=True)
        )

    def _open(self, options: ocp.CheckpointManagerOptions) -> _Manager:
        storage.forget_listings(self._folder)
        # `absolute` would prefix a URL with the current folder.
        folder = self._folder if storage.is_remote(self._folder) else self._folder.absolute()
        return _Manager(folder, options=options, item_names=("state", "meta"))

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints that are complete now, in order.

        Raises:
          Unavailable: the storage does not answer.
        """
        vars(self).pop("_reader", None)  # it would list them once
        return sorted(self._reader.all_steps())

    def save(self, step: int, state: State, meta: dict) -> None:
        """Start writing a checkpoint; `settle` waits until it is complete.

        Args:
          state: the state after `step` steps.
          meta: JSON metadata, stored with the arrays; the caller may change it afterwards.

        Raises:
          NotSaved: the storage refuses it, or memory is too small.
          RunFailed: devices hold different copies of the state.
        """
        check_replicas(state, step)
        arrays = {"fingerprints": fingerprints(state), "arrays": described(state)}
        # A copy, because the caller updates its counters while Orbax writes.
        meta = json.loads(json.dumps({**meta, "format_version": FORMAT_VERSION, **arrays}))
        meta["digest"] = _digest(meta)  # covers the fingerprints, which in turn cover the arrays

        def start() -> None:
            saved = _copy(state) if _shares_memory_with_host(state) else state
            items = ocp.args.Composite(state=ocp.args.StandardSave(saved), meta=ocp.args.JsonSave(meta))
            self._writer.save(step, args=items, force=True)

        self._guarded(start)

    def settle(self) -> None:
        """Wait until the pending checkpoint is complete.

        Raises:
          NotSaved: the storage refuses it.
        """
        if "_writer" in vars(self):
            self._guarded(self._writer.wait_until_finished)

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is being written in the background."""
        return "_writer" in vars(self) and self._writer.is_saving_in_progress()

    def close(self) -> None:
        """Wait until the pending checkpoint is complete, and end Orbax's threads.

        Raises:
          NotSaved: the storage refuses it.
        """
        self.settle()
        if writer := vars(self).pop("_writer", None):
            self._guarded(writer.close)
        if reader := vars(self).pop("_reader", None):
            reader.close()

    def _guarded(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:  # Orbax raises whatever its storage layers raise
            # A half-written checkpoint takes space. A new manager deletes it, the old one would count it as saved.
            vars(self).pop("_writer", None)  # absent if the manager itself could not be created
            if jax.process_count() == 1:  # a new one waits for all processes, and the ones that did write are elsewhere
                with contextlib.suppress(Exception):
                    self._writer.close()  # files that threads still write are deleted by the next save
                vars(self).pop("_writer", None)
            reason = why_not_written(error)
            raise NotSaved(
                f"a checkpoint could not be written to {self._folder}: {reason}; the older ones are kept"
            ) from error

    def restore_newest(self, abstract_state: Callable[[int], Any]) -> RestoredCheckpoint | None:
        """Return the newest undamaged checkpoint, or None if there are no checkpoints.

        Damaged checkpoints are logged, and renamed once an older one has been read.

        Args:
          abstract_state: returns shapes, dtypes and shardings of the state after a given number of steps.

        Raises:
          UserError: all checkpoints are damaged, other code saved them, or they have another format.
          RunFailed: the processes do not see the same checkpoints, or a checkpoint cannot be read, see `restore`.
          Unavailable: the storage does not answer.
        """
        steps = processes.together(self.steps, purpose="list-checkpoints")
        for index, others in enumerate(processes.gather(steps, "checkpoints")):
            if others != steps:
                raise RunFailed(
                    f"process {index} sees the checkpoints {others} in {self._folder} and this one {steps}; run the "
                    "same command again when the shared disk shows both the same"
                )
        damaged = {}
        for step in reversed(steps):
            try:
                restored = self.restore(step, abstract_state(step))
            except Damaged as error:
                damaged[step] = error
            else:
                # Rename only now: if all checkpoints are damaged, the error lists them under their own names.
                for later, error in damaged.items():
                    log.warning("checkpoint %d is damaged (%s); continuing from checkpoint %d", later, error, step)
                processes.on_writer(lambda: [self._set_aside(later) for later in damaged], "set-aside")
                return restored
        if damaged:
            reasons = "; ".join(f"{self._folder / str(step)}: {error}" for step, error in damaged.items())
            raise UserError(
                f"every checkpoint is damaged ({reasons}); all are kept; restore one from a backup, or start again in "
                "another --workdir"
            )
        return None

    def restore(self, step: int, abstract_state: Any = None) -> RestoredCheckpoint:
        """Read and verify one checkpoint; if that fails, read it once more.

        Args:
          abstract_state: shapes, dtypes and shardings of the arrays; all processes read together. With None, only this
            process reads, and returns the arrays in nested dicts and lists as they were saved.

        Raises:
          Damaged: the checkpoint differs from what was saved, in this process or in another one that reads it.
          UserError: other code saved it, or it has another format.
          RunFailed: it cannot be read for another reason, or only some processes read what was saved.
          Unavailable: the storage does not answer.
        """
        try:
            return self._restore_once(step, abstract_state)
        except (Damaged, _Differs) as problem:
            log.info("reading checkpoint %d again (%s)", step, problem)
        if abstract_state is None:
            time.sleep(_PAUSE)
        return self._restore_once(step, abstract_state)

    def _restore_once(self, step: int, abstract_state: Any) -> RestoredCheckpoint:
        """Read and verify a checkpoint; all processes that read it together raise the same kind of error."""
        if alone := abstract_state is None:
            meta, tree = self._read(step, None)
        else:
            content, failures = processes.attempt(lambda: self._read(step, abstract_state), f"restore-{step}")
            processes.raise_first([each for each in failures if each and not isinstance(each, Damaged)])
            if damages := [each for each in failures if each]:
                raise damages[0]
            meta, tree = content
        actual = fingerprints(tree)
        altered = [path for path, value in meta["fingerprints"].items() if actual.get(path) != value]
        gathered = [altered] if alone else processes.gather(altered, f"verify-{step}")
        if everywhere := [path for path in altered if all(path in paths for paths in gathered)]:
            raise Damaged(f"{len(everywhere)} arrays are not what was saved, first {everywhere[0]}")
        for index, paths in enumerate(gathered):
            if paths:
                raise _Differs(
                    f"process {index} reads other values of {shorten(paths, limit=1)} from checkpoint {step} in "
                    f"{self._folder} than the other processes; the checkpoint is kept; run the same command again "
                    "without the machine of that process"
                )
        return RestoredCheckpoint(step, tree, meta)

    def meta(self, step: int) -> dict:
        """Read and verify the metadata of one checkpoint, in this process.

        Raises:
          Damaged: a file is missing or altered.
          UserError, RunFailed, Unavailable: see `restore`.
        """
        meta = self._read_item(step, "meta", ocp.args.JsonRestore())
        is_intact = meta.pop("digest", None) == _digest(meta)
        # A newer version may compute its digest in another way. An older one is none of ours, so it is damage.
        if is_intact or meta.get("format_version", 0) > FORMAT_VERSION:
            check_format(f"checkpoint {step} in {self._folder}", meta["format_version"], FORMAT_VERSION)
        if not is_intact:
            raise Damaged("its metadata is not what was saved")
        return meta

    def _read(self, step: int, abstract_state: Any) -> tuple[dict, Any]:
        """Read metadata and arrays in this process.

        Raises:
          Damaged: a file is missing or altered.
          UserError, RunFailed, Unavailable: see `restore`.
        """
        meta, path = self.meta(step), self._folder / str(step)
        if abstract_state is not None and (changes := differences(meta["arrays"], described(abstract_state))):
            raise UserError(
                f"{path} was saved by other code ({shorten(changes)}); use the version of bertjax that starts.jsonl in "
                "the workdir records, or another --workdir"
            )
        # Without an abstract state, put all arrays on one device: the saved shardings may not exist on this machine.
        fallback = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return meta, self._read_item(
            step, "state", ocp.args.StandardRestore(abstract_state, fallback_sharding=fallback)
        )

    def _read_item(self, step: int, item: str, args: ocp.args.CheckpointArgs) -> Any:
        path = self._folder / str(step)

        def read() -> Any:
            try:
                items = ocp.args.Composite(**{item: args})
                return jax.block_until_ready(self._reader.restore(step, args=items)[item])
            except Exception as error:  # Orbax raises whatever its storage layers raise
                raise explain(error, path) from None  # it may itself be a cause of this error: no circular chain

        try:
            return storage.retry(read, path)
        except UserError:
            raise
        except Exception as error:
            raise not_read(error, path) from error

    def _set_aside(self, step: int) -> None:
        damaged = self._folder / str(step)
        target = self._folder.with_name(f"{self._folder.name}.damaged-{step}-{int(time.time())}")
        storage.retry(lambda: damaged.rename(target), damaged)


def _shares_memory_with_host(state: State) -> bool:
    return any(device.platform == "cpu" for leaf in jax.tree.leaves(state) for device in leaf.devices())


def described(tree: Any) -> dict[str, str]:
    """Return {path: dtype and shape} for every array, such as `float32[100,50]`."""
    return {path: f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for path, leaf in leaves_of(tree).items()}


def _digest(meta: dict) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
