"""Batches by step, prefetched by Grain. A batch depends only on its step, so iterators have no state to save."""

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Generator, Mapping
from multiprocessing import resource_tracker
from typing import Protocol

import grain
import numpy as np
from absl import flags

from bertjax.data.batch import Draw, PlacedExamples, core, place
from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.order import Epochs, Turns
from bertjax.data.plan import Plan
from bertjax.data.preparation.workers import end_with_parent, ignore_stop_signals, stop_signals_blocked

Features = Callable[[PlacedExamples, Draw], dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Feed:
    """Batches for one task at one row length.

    Attributes:
      sources: rows per source.
      turns: source schedule.
      features: computes the arrays that the objective adds to the core batch or replaces in it.
      seq_len: T.
    """

    sources: tuple[Epochs, ...]
    turns: Turns
    features: Features
    vocabulary: Vocabulary
    seq_len: int

    @functools.cached_property
    def plans(self) -> list[Plan]:
        """Return the plans from all sources."""
        return [plan for source in self.sources for plan in source.plans]

    @functools.cached_property
    def slots(self) -> int:
        """Return N, the most examples in a row."""
        return max(plan.counts.slots for plan in self.plans)

    @functools.cached_property
    def _first_ids(self) -> np.ndarray:
        """Return the id of each plan's first example. Unique ids give every example its own masking."""
        counts = [plan.counts.examples for plan in self.plans]
        return np.cumsum(counts) - counts

    @functools.cached_property
    def fingerprint(self) -> str:
        """Return a hash over everything that determines the rows."""
        parts = [*(plan.fingerprint for plan in self.plans), str(self.turns.shares)]
        return hashlib.sha256(",".join(parts).encode()).hexdigest()

    def batch(self, ordinals: np.ndarray, step: int | None = None) -> dict[str, np.ndarray]:
        """Return the rows at these ordinals (int64 [B]) as arrays [B, ...]. The ordinal -1 gives a padding row.

        Args:
          step: the training step that reads them, see `Draw`.
        """
        # The ordinal -1 would be in a round before the first, so padding is located as ordinal 0 and marked afterwards.
        epochs_B, plans_B, rows_B = self.locate(np.maximum(ordinals, 0))
        plans_B = np.where(ordinals < 0, -1, plans_B)
        taken_BN = np.full((len(ordinals), self.slots), -1, np.int64)
        parts, taken = [], 0
        # Rows from one plan are read together. Their examples are placed in the right batch rows afterwards.
        # Padding selects plan 0 too, of which it reads nothing, so a batch of padding still has one part to join.
        for index in np.unique(np.maximum(plans_B, 0)):
            plan, here = self.plans[index], np.flatnonzero(plans_B == index)
            examples_BN = plan.rows(rows_B[here], epochs_B[here])
            filled_BN = examples_BN >= 0
            ragged = plan.examples.take(examples_BN[filled_BN])
            parts.append(dataclasses.replace(ragged, ids=ragged.ids + self._first_ids[index]))
            # Places in the joined examples, which are ordered by plan. An empty slot gets a wrong place, and -1 below.
            order_BN = taken + np.cumsum(filled_BN).reshape(filled_BN.shape) - 1
            taken_BN[here, : plan.counts.slots] = np.where(filled_BN, order_BN, -1)
            taken += len(ragged.ids)
        placed = place(Ragged.join(parts), taken_BN, self.seq_len, self.vocabulary)
        return core(placed) | self.features(placed, Draw(self.seed, epochs_B[placed.rows], step))

    def locate(self, ordinals: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return epoch, plan (index in `plans`) and row for ordinals; int64 [B] each."""
        sources_B, ordinals_B = self.turns.at(ordinals)
        located_3B, first_plan = np.zeros((3, len(ordinals)), np.int64), 0
        for index, source in enumerate(self.sources):
            here = sources_B == index
            located_3B[:, here] = source.at(ordinals_B[here])
            # Sources number their own plans from 0; `plans` lists those of all sources one after the other.
            located_3B[1, here] += first_plan
            first_plan += len(source.plans)
        epochs_B, plans_B, rows_B = located_3B
        return epochs_B, plans_B, rows_B

    @property
    def seed(self) -> int:
        """Return the run's seed."""
        return self.sources[0].seed


class StepSpec(Protocol):
    """The data for one step: task, and `rows` rows with `seq_len` tokens each, from ordinal `first`."""

    @property
    def task(self) -> str: ...

    @property
    def seq_len(self) -> int: ...

    @property
    def first(self) -> int: ...

    @property
    def rows(self) -> int: ...


def filled_up(rows: int, shards: int) -> int:
    """Round a batch's row count up to a multiple of `shards`."""
    return -(-rows // shards) * shards


@dataclasses.dataclass(frozen=True)
class LocalBatches:
    """This host's part of a global batch. Shard s of S has rows s * R to (s + 1) * R, with R = ceil(B / S).

    If S does not divide B, the last rows are padding. Losses are normalized by weights, not rows, so a batch and its
    loss do not depend on the device count.

    Attributes:
      at: maps a step to its spec; picklable.
      feeds: feed for each (task, seq_len).
      shards: this host's shards, in order.
      shard_count: S, shards over all hosts.
    """

    at: Callable[[int], StepSpec]
    feeds: Mapping[tuple[str, int], Feed]
    shards: tuple[int, ...]
    shard_count: int

    def __call__(self, step: int) -> dict[str, np.ndarray]:
        """Return the batch for a step."""
        spec = self.at(step)
        # Places from `spec.rows` on are padding, so all of it is in the last shards.
        places = np.arange(filled_up(spec.rows, self.shard_count))
        ordinals_SR = np.where(places < spec.rows, spec.first + places, -1).reshape(self.shard_count, -1)
        feed, ordinals = self.feeds[spec.task, spec.seq_len], ordinals_SR[list(self.shards)].ravel()
        if ordinals.max() >= 0:
            return feed.batch(ordinals, step)
        # This host has only padding. Formats and features expect at least one example, so one is added and cut off.
        batch = feed.batch(np.append(ordinals, spec.first), step)
        return {name: array[:-1] for name, array in batch.items()}


def iterate(
    make: LocalBatches, start: int, stop: int, workers: int, prefetch: int
) -> Generator[dict[str, np.ndarray], None, None]:
    """Yield make(start), ..., make(stop - 1), prefetched. Errors in `make` are raised here.

    Args:
      make: maps a step to its batch; pickled if there are workers.
      workers: Grain processes; 0 uses a thread in this process, which is enough if a step takes longer than its batch.
      prefetch: batches that each worker prepares ahead.
    """
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain's workers read absl flags, and not every program has parsed any
    # More threads would only wait for each other: numpy holds the interpreter lock on arrays as small as these.
    threads = grain.ReadOptions(num_threads=0 if workers else 1, prefetch_buffer_size=prefetch)
    batches = grain.MapDataset.range(start, stop).map(make).to_iter_dataset(threads)
    processes = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=prefetch)
    iterator = iter(batches.mp_prefetch(processes, _start_worker))
    if workers:
        resource_tracker.ensure_running()  # otherwise the first worker does it, after which SIGTERM is not blocked
    try:
        with stop_signals_blocked():  # the workers start with the first batch
            first = next(iterator, None)
        if first is not None:
            yield first
            yield from iterator
    finally:
        # Grain joins every worker, even one that failed to start. Its assertion would hide the actual error.
        with contextlib.suppress(AssertionError):
            iterator.close()


def _start_worker(index: int, count: int) -> None:
    """Set up a Grain worker process before its first batch."""
    ignore_stop_signals()
    end_with_parent()
