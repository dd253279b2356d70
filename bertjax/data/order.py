"""From an ordinal to a row of a plan: which source, which epoch of it, which plan, which place in its order.

The tasks of a mixture take turns by the same table as weighted sources.

An ordinal is a row's place in the endless sequence of rows that a task trains on. Nothing here has a state: any
ordinal costs the same.
"""

import dataclasses
import functools

import numpy as np

from bertjax.data.plan import Plan
from bertjax.data.random import permuted

# Slots of the table by which weighted sources take turns: their shares are exact to half a slot.
PERIOD = 4096
SMALLEST_SHARE = 0.5 / PERIOD
# Places whose rows are computed together, and kept for the batches that follow: 2,048 cost hardly more than 256.
BLOCK = 2048
BLOCKS_KEPT = 64


@dataclasses.dataclass(frozen=True)
class Epochs:
    """The rows of one source, epoch after epoch: epoch e runs through plan e mod P in an order of its own.

    Attributes:
      plans: P plans of the same split, format and row length.
      stream: names the random order among others.
      seed: of the run.
      shuffle: a new order of the rows in every epoch; otherwise they come as planned.
    """

    plans: tuple[Plan, ...]
    stream: str
    seed: int
    shuffle: bool

    @functools.cached_property
    def _first_rows(self) -> np.ndarray:
        """Where each plan starts in a round through all of them, then the length of the round; int64 [P + 1]."""
        return np.concatenate([[0], np.cumsum([plan.counts.rows for plan in self.plans])])

    def at(self, ordinals: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Epoch, plan and row of each ordinal (int64 [B], from 0 on); int64 [B] each."""
        rounds, within = np.divmod(ordinals, self._first_rows[-1])
        plans = np.searchsorted(self._first_rows, within, side="right") - 1
        epochs, rows = rounds * len(self.plans) + plans, within - self._first_rows[plans]
        if self.shuffle:
            for index, plan in enumerate(self.plans):
                here = plans == index
                rows[here] = self._shuffled(epochs[here], rows[here], plan.counts.rows)
        return epochs, plans, rows

    def _shuffled(self, epochs: np.ndarray, places: np.ndarray, size: int) -> np.ndarray:
        """The rows of a plan of `size` at these places of these epochs; int64 [n] each."""
        blocks_an_epoch = -(-size // BLOCK)
        rows, blocks = np.empty_like(places), epochs * blocks_an_epoch + places // BLOCK
        for block in np.unique(blocks):
            here = blocks == block
            epoch, number = divmod(int(block), blocks_an_epoch)
            rows[here] = _block(self.seed, self.stream, epoch, number, size)[places[here] % BLOCK]
        return rows


@functools.lru_cache(BLOCKS_KEPT)
def _block(seed: int, stream: str, epoch: int, number: int, size: int) -> np.ndarray:
    """The rows at one block of the places of an epoch; int64."""
    return permuted(seed, stream, epoch, np.arange(number * BLOCK, min((number + 1) * BLOCK, size)), size)


@dataclasses.dataclass(frozen=True)
class Turns:
    """How sources take turns: in fixed proportions, spread evenly, by a table of `PERIOD` slots that repeats.

    Attributes:
      shares: of the rows, one for each source, none below SMALLEST_SHARE; they sum to 1.
    """

    shares: tuple[float, ...]

    @functools.cached_property
    def _sources(self) -> np.ndarray:
        """The source of each slot; int64 [PERIOD]. Every source has a slot, however small its share."""
        wanted = np.array(self.shares) * PERIOD
        slots = np.maximum(np.floor(wanted).astype(np.int64), 1)
        while (missing := PERIOD - slots.sum()) > 0:
            slots[np.argsort(slots - wanted, kind="stable")[:missing]] += 1
        while slots.sum() > PERIOD:
            slots[np.argmax(slots)] -= 1
        owners = np.repeat(np.arange(len(slots)), slots)
        nth = np.arange(PERIOD) - np.repeat(np.cumsum(slots) - slots, slots)
        return owners[np.argsort((nth + 0.5) / slots[owners], kind="stable")]

    @functools.cached_property
    def _ranks(self) -> np.ndarray:
        """How many slots of the same source come before each slot; int64 [PERIOD]."""
        one_hot = self._sources[:, None] == np.arange(len(self.shares))
        return (np.cumsum(one_hot, axis=0) - 1)[np.arange(PERIOD), self._sources]

    def at(self, ordinals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The source of each ordinal (int64 [B]) and its ordinal among the rows of that source; int64 [B] each."""
        if len(self.shares) == 1:
            return np.zeros_like(ordinals), ordinals
        rounds, slots = np.divmod(ordinals, PERIOD)
        sources = self._sources[slots]
        return sources, rounds * np.bincount(self._sources)[sources] + self._ranks[slots]

    def taken(self, ordinals: int) -> np.ndarray:
        """How many of the first so many ordinals are each source's; int64 [sources]."""
        rounds, rest = divmod(ordinals, PERIOD)
        count = functools.partial(np.bincount, minlength=len(self.shares))
        return rounds * count(self._sources) + count(self._sources[:rest])
