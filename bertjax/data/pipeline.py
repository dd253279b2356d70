"""From a step to a batch, with Grain around it. A batch depends on its step alone, so there is no iterator state.

An ordinal is a row's place in the endless sequence of epochs: ordinal = epoch * R + place in the order of that epoch.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import grain
import numpy as np
from absl import flags

from bertjax.data.batch import Draw, PlacedExamples, core, place
from bertjax.data.examples import Examples, Vocabulary
from bertjax.data.random import permuted
from bertjax.errors import UserError

Features = Callable[[PlacedExamples, Draw], dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Feed:
    """Batches of one task at one row length.

    Attributes:
      examples: where tokens come from.
      rows_RN: int32, which examples each row holds, -1 for none.
      features: what the objective adds to the core batch or replaces in it.
      vocabulary: of the tokens.
      seq_len: T.
      seed: of the run.
      shuffle: a new order of the rows in every epoch; otherwise they come as planned.
    """

    examples: Examples
    rows_RN: np.ndarray
    features: Features
    vocabulary: Vocabulary
    seq_len: int
    seed: int
    shuffle: bool

    def batch(self, ordinals: np.ndarray) -> dict[str, np.ndarray]:
        """The rows with these ordinals (int64 [B]), -1 giving a row of padding; arrays with B as first dimension."""
        epochs, places = np.divmod(np.maximum(ordinals, 0), len(self.rows_RN))
        if self.shuffle:
            places = permuted(self.seed, "rows", epochs, places, len(self.rows_RN))
        indices_BN = np.where(ordinals[:, None] < 0, -1, self.rows_RN[places])
        filled_BN = indices_BN >= 0
        ragged = self.examples.take(indices_BN[filled_BN])
        taken_BN = np.where(filled_BN, np.cumsum(filled_BN).reshape(filled_BN.shape) - 1, -1)
        placed = place(ragged, taken_BN, self.seq_len, self.vocabulary)
        return core(placed) | self.features(placed, Draw(self.seed, epochs[placed.rows]))


class Slot(Protocol):
    """What one step trains on: a task, and `rows` rows of `seq_len` tokens from ordinal `first` on."""

    task: str
    seq_len: int
    first: int
    rows: int


@dataclasses.dataclass(frozen=True)
class LocalBatches:
    """A host's share of the global batch of every step: host h of H takes rows h * B / H to (h + 1) * B / H.

    Attributes:
      at: step -> its slot; picklable.
      feeds: one for each (task, seq_len) that occurs.
      host, hosts: this process among all.
    """

    at: Callable[[int], Slot]
    feeds: Mapping[tuple[str, int], Feed]
    host: int
    hosts: int

    def __call__(self, step: int) -> dict[str, np.ndarray]:
        """Raises UserError where the rows do not divide over the hosts."""
        slot = self.at(step)
        rows, rest = divmod(slot.rows, self.hosts)
        if rest:
            raise UserError(f"a batch of {slot.rows} rows does not divide over {self.hosts} hosts; use a multiple")
        first = slot.first + self.host * rows
        return self.feeds[slot.task, slot.seq_len].batch(np.arange(first, first + rows))


def iterate(make: LocalBatches, start: int, stop: int, workers: int, prefetch: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields make(start), ..., make(stop - 1), prepared ahead; what `make` raises is raised here.

    Args:
      make: picklable where there are workers.
      start, stop: the steps.
      workers: processes that prepare batches; 0 uses one thread of this process, which suffices as long as a step
        takes longer than its batch.
      prefetch: batches that wait ready, for each worker.
    """
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain's workers read absl flags, and not every program has parsed any
    # More threads would only wait for each other: numpy holds the interpreter lock on arrays as small as these.
    threads = grain.ReadOptions(num_threads=0 if workers else 1, prefetch_buffer_size=prefetch)
    batches = grain.MapDataset.range(start, stop).map(make).to_iter_dataset(threads)
    processes = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=prefetch)
    iterator = iter(batches.mp_prefetch(processes))
    try:
        yield from iterator
    finally:
        iterator.close()
