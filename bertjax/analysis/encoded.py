"""A material encoded for one model: its examples and their batches."""

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np

from bertjax.data.batch import Draw, core, place
from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.labeled.base import Record
from bertjax.inference import buckets
from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import Objective

# Limit on attention probabilities per batch, over all layers and heads: 128 MiB in float32.
ATTENTION = 1 << 25
# Seed for masking: every model and checkpoint sees the same masks.
SEED = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Encoded:
    """A material's examples for one model.

    Attributes:
      ragged: the M examples.
      records: the records behind them; empty for a corpus.
      record_of: int64 [M], index of each example's record.
      objective: the objective that can score them; None if the model has no suitable head.
      vocabulary: the vocabulary of the tokens.
      longest: maximum tokens per example.
      notes: {what was changed, such as texts that were cut: number of examples}.
    """

    ragged: Ragged
    records: list[Record]
    record_of: np.ndarray
    objective: Objective | None
    vocabulary: Vocabulary
    longest: int
    notes: dict[str, int] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ragged.ids)

    @property
    def tokens(self) -> int:
        """Number of tokens in all examples."""
        return len(self.ragged.tokens)

    @property
    def group(self) -> int:
        """Number of neighboring examples that share a row."""
        return self.objective.traits.group if self.objective else 1

    def batch(self, rows_BN: np.ndarray, seq_len: int, with_objective: bool = False) -> dict[str, np.ndarray]:
        """Return the core batch with examples packed as in `rows_BN`.

        Args:
          rows_BN: int, index of the example in each slot, -1 for an empty slot; each example at most once.
          seq_len: T.
          with_objective: whether to add the objective's features. A masked LM's features replace tokens by [MASK]; the
            choice depends on the example only.
        """
        members = rows_BN[rows_BN >= 0]
        # `place` expects indices into the examples that are taken, not into all.
        order_BN = np.full(rows_BN.shape, -1, np.int64)
        order_BN[rows_BN >= 0] = np.arange(len(members))
        placed = place(self.ragged.take(members), order_BN, seq_len, self.vocabulary)
        arrays = core(placed)
        if with_objective:
            # Epoch 0 for every example: masks do not depend on the batch.
            arrays |= self.objective.features(placed, Draw(SEED, np.zeros(len(members), np.int64)))
        return arrays

    def batches(
        self, encoder: EncoderConfig, with_objective: bool = False, share: float = 1.0
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield all examples once, one group per row, in a few shapes. A shape may end with empty rows.

        The row count is a multiple of the local device count.

        Args:
          encoder: its attention maps limit the row count.
          with_objective: see `batch`.
          share: fraction of the usual row count, for functions that need more memory.
        """
        devices, group = jax.local_device_count(), self.group
        lengths = self.ragged.lengths.reshape(-1, group).sum(axis=1)
        for bucket in buckets.sort(lengths, max(self.longest * group, int(lengths.max()))):
            most = int(share * ATTENTION) // (encoder.layers * encoder.heads * bucket.seq_len**2)
            # Rounded down to a power of two, so that fewer different shapes are compiled.
            rows = min(bucket.rows, 1 << max(most, 1).bit_length() - 1)
            bucket = dataclasses.replace(bucket, rows=-(-rows // devices) * devices)
            for groups in bucket.batches():
                rows_BN = np.full((bucket.rows, group), -1, np.int64)
                rows_BN[: len(groups)] = groups[:, None] * group + np.arange(group)
                yield self.batch(rows_BN, bucket.seq_len, with_objective)
