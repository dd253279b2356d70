"""A jitted function of batches on examples of any length, or on groups of examples: a few shapes, each compiled once.

Examples are sorted into buckets whose lengths double. All batches of a bucket have one shape. The results are returned
in the order of the examples.
"""

import dataclasses
from collections.abc import Callable, Iterator

import jax
import numpy as np

from bertjax.data.batch import PlacedExamples, core, place
from bertjax.data.examples import Examples, Vocabulary
from bertjax.inference.base import Arrays
from bertjax.objectives.outputs import Output, regroup

SHORTEST = 32
# Positions of a full batch. Larger batches are hardly faster on a CPU; an activation of BERT-base takes 24 MiB.
POSITIONS = 1 << 13

Features = Callable[[PlacedExamples], dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Groups of examples, usually of one example, that are computed in batches of one shape.

    Attributes:
      seq_len: T.
      rows: B.
      members: int64, indices of the groups, ascending; the last batch may have empty rows.
    """

    seq_len: int
    rows: int
    members: np.ndarray

    def batches(self) -> Iterator[np.ndarray]:
        """Yield the members of each batch, at most B."""
        for first in range(0, len(self.members), self.rows):
            yield self.members[first : first + self.rows]


def sort(lengths: np.ndarray, longest: int) -> list[Bucket]:
    """Return the buckets of groups; each group is in the shortest bucket that holds it.

    A bucket that fills no batch has fewer rows, a power of two: one sentence must not cost as much as hundreds.

    Args:
      lengths: tokens of each group, int [M], at most `longest`.
      longest: T of the last bucket.
    """
    seq_lens = [SHORTEST]
    while seq_lens[-1] < longest:
        seq_lens.append(2 * seq_lens[-1])
    seq_lens[-1] = longest
    buckets, bucket_of = [], np.searchsorted(seq_lens, lengths)
    for bucket in np.unique(bucket_of):
        members = np.flatnonzero(bucket_of == bucket)
        rows = min(1 << (len(members) - 1).bit_length(), max(1, POSITIONS // seq_lens[bucket]))
        buckets.append(Bucket(seq_lens[bucket], rows, members))
    return buckets


def run(
    function: Callable[[dict, Arrays], dict[str, Output]],
    params: dict,
    examples: Examples,
    vocabulary: Vocabulary,
    longest: int,
    features: Features,
    on_tokens: Callable[[int], object],
    group: int = 1,
) -> dict[str, np.ndarray]:
    """Apply a function to examples, one group of them per row.

    Args:
      function: jitted, (params, batch) -> {name: `Output`}.
      params: the first argument of `function`.
      examples: M examples, in the order of the results.
      vocabulary: the vocabulary of their tokens.
      longest: the most tokens of a group.
      features: returns the arrays of a batch that are not in the core batch.
      on_tokens: called with the number of tokens of each batch when it is done.
      group: N, the number of consecutive examples in a row.

    Returns:
      {name: array}, without padding, in the order of the examples: [M, ...] per example, [tokens of all M, ...] per
      token, [M / 2, ...] per pair and [M / N, ...] per row.
    """
    lengths = examples.lengths().astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    count = len(lengths)
    sizes = {"example": count, "token": int(lengths.sum()), "pair": count // 2, "row": count // group}
    results: dict[str, np.ndarray] = {}
    for bucket in sort(lengths.reshape(-1, group).sum(axis=1), longest):
        for groups in bucket.batches():
            members = (groups[:, None] * group + np.arange(group)).ravel()
            ragged = examples.take(members)
            places_BN = np.arange(bucket.rows * group).reshape(bucket.rows, group)
            rows_BN = np.where(places_BN < len(members), places_BN, -1)
            placed = place(ragged, rows_BN, bucket.seq_len, vocabulary)
            batch = core(placed) | features(placed)
            outputs = jax.device_get(function(params, batch))
            cells = {
                "example": members,
                "token": ragged.spread(starts[members]) + ragged.token_index,
                "pair": members[::2] // 2,
                "row": groups,
            }
            for name, values in regroup(outputs, batch).items():
                per = outputs[name].per
                results.setdefault(name, np.empty((sizes[per], *values.shape[1:]), values.dtype))[cells[per]] = values
            on_tokens(int(lengths[members].sum()))
    return results
