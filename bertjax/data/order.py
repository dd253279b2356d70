"""Row order: maps an ordinal to source, epoch, plan and row.

An ordinal is a position in the infinite sequence of rows that a task trains on. Nothing here has state, and every
ordinal costs the same, so training resumes at any step. Mixed tasks take turns by the same table as weighted sources.
"""

import dataclasses
import functools

import numpy as np

from bertjax.data.plan import Plan
from bertjax.data.random import permuted

# Turns in the table for weighted sources. A source's share is exact to half a turn.
PERIOD = 4096
SMALLEST_SHARE = 0.5 / PERIOD
# Rows that are computed at once and cached for the next batches: 2,048 cost hardly more than 256.
BLOCK = 2048
BLOCKS_KEPT = 64


@dataclasses.dataclass(frozen=True)
class Epochs:
    """The rows of one source, epoch after epoch. Epoch e reads plan e mod P in its own order.

    Attributes:
      plans: P plans with the same split, format and row length.
      stream: name of the random stream for the order.
      seed: the run's seed.
      shuffle: whether each epoch is reshuffled; otherwise rows come in plan order.
    """

    plans: tuple[Plan, ...]
    stream: str
    seed: int
    shuffle: bool

    @functools.cached_property
    def _first_rows(self) -> np.ndarray:
        """Return where each plan starts in a round through all plans, then the round's length; int64 [P + 1]."""
        return np.concatenate([[0], np.cumsum([plan.counts.rows for plan in self.plans])])

    def at(self, ordinals: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return epoch, plan and row for ordinals (int64 [B], from 0); int64 [B] each."""
        # A round reads all P plans once. Each plan in it is one epoch, so epochs advance P per round.
        rounds, within = np.divmod(ordinals, self._first_rows[-1])
        # side="right": the first row of a plan belongs to that plan, not to the one before.
        plans = np.searchsorted(self._first_rows, within, side="right") - 1
        epochs, rows = rounds * len(self.plans) + plans, within - self._first_rows[plans]
        if self.shuffle:
            for index, plan in enumerate(self.plans):
                here = plans == index
                rows[here] = self._shuffled(epochs[here], rows[here], plan.counts.rows)
        return epochs, plans, rows

    def _shuffled(self, epochs: np.ndarray, places: np.ndarray, size: int) -> np.ndarray:
        """Return the rows at these places when a plan with `size` rows is shuffled in each epoch; int64 [n]."""
        blocks_an_epoch = -(-size // BLOCK)
        rows, blocks = np.empty_like(places), epochs * blocks_an_epoch + places // BLOCK
        for block in np.unique(blocks):
            here = blocks == block
            epoch, number = divmod(int(block), blocks_an_epoch)
            rows[here] = _block(self.seed, self.stream, epoch, number, size)[places[here] % BLOCK]
        return rows


@functools.lru_cache(BLOCKS_KEPT)
def _block(seed: int, stream: str, epoch: int, number: int, size: int) -> np.ndarray:
    """Return the rows for one block of places in a shuffled epoch; int64."""
    return permuted(seed, stream, epoch, np.arange(number * BLOCK, min((number + 1) * BLOCK, size)), size)


@dataclasses.dataclass(frozen=True)
class Turns:
    """Source schedule: fixed proportions, evenly spread, from a table with `PERIOD` turns that repeats.

    Attributes:
      shares: fraction of rows per source, at least SMALLEST_SHARE each; they sum to 1.
    """

    shares: tuple[float, ...]

    @functools.cached_property
    def _sources(self) -> np.ndarray:
        """Return the source per turn; int64 [PERIOD]. Every source gets a turn, however small its share."""
        exact = np.array(self.shares) * PERIOD
        turns = np.maximum(np.floor(exact).astype(np.int64), 1)
        # Largest remainders: shares were rounded down, and the missing turns go to the sources that lost most.
        while (missing := PERIOD - turns.sum()) > 0:
            turns[np.argsort(turns - exact, kind="stable")[:missing]] += 1
        # The minimum of one turn can exceed the period; the largest source hardly notices one turn less.
        while turns.sum() > PERIOD:
            turns[np.argmax(turns)] -= 1
        owners = np.repeat(np.arange(len(turns)), turns)
        nth = np.arange(PERIOD) - np.repeat(np.cumsum(turns) - turns, turns)
        # The n-th of k turns is due at (n + 0.5) / k of the period; sorting by due time spreads every source evenly.
        return owners[np.argsort((nth + 0.5) / turns[owners], kind="stable")]

    @functools.cached_property
    def _ranks(self) -> np.ndarray:
        """Return how many turns the same source had before each turn; int64 [PERIOD]."""
        one_hot = self._sources[:, None] == np.arange(len(self.shares))
        return (np.cumsum(one_hot, axis=0) - 1)[np.arange(PERIOD), self._sources]

    def at(self, ordinals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return source and ordinal within the source for ordinals (int64 [B]); int64 [B] each."""
        if len(self.shares) == 1:
            return np.zeros_like(ordinals), ordinals
        rounds, turns = np.divmod(ordinals, PERIOD)
        sources = self._sources[turns]
        return sources, rounds * np.bincount(self._sources)[sources] + self._ranks[turns]

    def taken(self, ordinals: int) -> np.ndarray:
        """Count the rows from each source among the first `ordinals` rows; int64 [sources]."""
        rounds, rest = divmod(ordinals, PERIOD)
        count = functools.partial(np.bincount, minlength=len(self.shares))
        return rounds * count(self._sources) + count(self._sources[:rest])
