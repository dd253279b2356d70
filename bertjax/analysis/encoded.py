"""The examples of a material for one model, and their batches."""

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

# Attention probabilities of a batch, over all layers and heads: 128 MiB in float32.
ATTENTION = 1 << 25
# The seed of masks.
SEED = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Encoded:
    """The examples of a material for one model.

    Attributes:
      ragged: the M examples.
      records: the records that they were made of; empty for a corpus.
      record_of: int64 [M], the index of the record of each example.
      objective: the objective that can be scored on them; None if the model has no head for it.
      vocabulary: the vocabulary of the tokens.
      longest: the most tokens of an example.
      notes: {what was done to examples: number of examples}.
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
        """Number of tokens of all examples."""
        return len(self.ragged.tokens)

    @property
    def group(self) -> int:
        """Number of neighboring examples that share a row."""
        return self.objective.group if self.objective else 1

    def batch(self, rows_BN: np.ndarray, seq_len: int, with_objective: bool = False) -> dict[str, np.ndarray]:
        """Return the core batch of examples, packed as `rows_BN` places them.

        Args:
          rows_BN: int, the index of the example in each slot, -1 for an empty one; no example twice.
          seq_len: T.
          with_objective: whether the features of the objective are added. Those of a masked LM replace tokens by
            [MASK]; which ones depends on the example only.
        """
        members = rows_BN[rows_BN >= 0]
        order_BN = np.full(rows_BN.shape, -1, np.int64)
        order_BN[rows_BN >= 0] = np.arange(len(members))
        placed = place(self.ragged.take(members), order_BN, seq_len, self.vocabulary)
        arrays = core(placed)
        if with_objective:
            arrays |= self.objective.features(placed, Draw(SEED, np.zeros(len(members), np.int64)))
        return arrays

    def batches(
        self, encoder: EncoderConfig, with_objective: bool = False, share: float = 1.0
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield all examples once, one group in each row; a few shapes, the last rows of a shape may be empty.

        The number of rows is a multiple of the number of local devices.

        Args:
          encoder: the encoder, whose attention maps bound the number of rows.
          with_objective: see `batch`.
          share: share of the usual number of rows, for functions that need more memory.
        """
        devices, group = jax.local_device_count(), self.group
        lengths = self.ragged.lengths.reshape(-1, group).sum(axis=1)
        for bucket in buckets.sort(lengths, max(self.longest * group, int(lengths.max()))):
            most = int(share * ATTENTION) // (encoder.layers * encoder.heads * bucket.seq_len**2)
            rows = min(bucket.rows, 1 << max(most, 1).bit_length() - 1)
            bucket = dataclasses.replace(bucket, rows=-(-rows // devices) * devices)
            for groups in bucket.batches():
                rows_BN = np.full((bucket.rows, group), -1, np.int64)
                rows_BN[: len(groups)] = groups[:, None] * group + np.arange(group)
                yield self.batch(rows_BN, bucket.seq_len, with_objective)
