"""JAX as an engine: a jitted function in a few shapes that are compiled once.

Groups of examples are sorted into buckets with doubling lengths. All batches in a bucket have one shape. A group that
comes alone is padded to a finer length: it is a question that somebody waits for, and on a CPU its time grows with the
padding.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.data.batch import core, place
from bertjax.data.examples import Ragged
from bertjax.inference.base import Bucket, Pipeline
from bertjax.objectives.host import Output, regroup

SHORTEST = 32
# Positions per full batch. Larger batches are hardly faster on a CPU; one BERT-base activation takes 24 MiB.
POSITIONS = 1 << 13
# Smallest length of a group that comes alone, and smallest step between two such lengths.
_STEP = 8


class JaxEngine(NamedTuple):
    """An engine, see `bertjax.inference.base.Engine`.

    Attributes:
      function: jitted, (params, batch) -> {name: `Output`}.
      params: its first argument.
      pipeline: has the vocabulary, the group and the features.
    """

    function: Callable[[dict, Any], dict[str, Output]]
    params: Any
    pipeline: Pipeline

    def buckets(self, lengths: np.ndarray, longest: int) -> list[Bucket]:
        return sort(lengths, longest)

    def __call__(self, ragged: Ragged, bucket: Bucket) -> dict[str, Output]:
        group = self.pipeline.group
        # Rows beyond the last group stay empty (-1), so that the last batch has the same shape.
        places_BN = np.arange(bucket.rows * group).reshape(bucket.rows, group)
        rows_BN = np.where(places_BN < len(ragged.ids), places_BN, -1)
        placed = place(ragged, rows_BN, bucket.seq_len, self.pipeline.vocabulary)
        batch: Any = core(placed) | self.pipeline.features(placed)
        outputs = jax.device_get(self.function(self.params, batch))
        return {name: Output(values, outputs[name].per) for name, values in regroup(outputs, batch).items()}


def sort(lengths: np.ndarray, longest: int) -> list[Bucket]:
    """Sort groups into buckets; each group goes to the shortest bucket that holds it.

    A bucket with less than a full batch gets fewer rows, a power of two: one sentence must not cost as much as
    hundreds. A group that comes alone gets the length of `_length_alone`.

    Args:
      lengths: tokens per group, int [M], at most `longest`.
      longest: T of the last bucket.
    """
    seq_lens = [_length_alone(int(lengths[0])) if len(lengths) == 1 else SHORTEST]
    while seq_lens[-1] < longest:
        seq_lens.append(2 * seq_lens[-1])
    # The last bucket ends at the model's limit, which need not be a power of two.
    seq_lens[-1] = longest
    buckets, bucket_of = [], np.searchsorted(seq_lens, lengths)
    for bucket in np.unique(bucket_of):
        members = np.flatnonzero(bucket_of == bucket)
        rows = min(1 << (len(members) - 1).bit_length(), max(1, POSITIONS // seq_lens[bucket]))
        buckets.append(Bucket(seq_lens[bucket], rows, members))
    return buckets


def _length_alone(length: int) -> int:
    """Return the T of a group that comes alone: 8, 16, 24, 32, and then two for each doubling (48, 64, 96, 128, ...).

    At most a third of a row is padding beyond 16 tokens, and T up to 512 has 12 values, so that a process that answers
    one text at a time soon has compiled all of them.
    """
    step = max(_STEP, (1 << (length - 1).bit_length()) // 4)
    return -(-length // step) * step
