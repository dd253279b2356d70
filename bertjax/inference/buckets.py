"""Apply a jitted function to examples of any length, in a few shapes that are compiled once.

Examples, or groups of examples, are sorted into buckets with doubling lengths. All batches in a bucket have one shape.
A group that comes alone is padded to a finer length: it is a question that somebody waits for, and on a CPU its time
grows with the padding. Results are returned in the order of the examples.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from bertjax.data.batch import PlacedExamples, core, place
from bertjax.data.examples import Examples, Vocabulary
from bertjax.inference.base import Arrays
from bertjax.objectives.outputs import Output, regroup

SHORTEST = 32
# Positions per full batch. Larger batches are hardly faster on a CPU; one BERT-base activation takes 24 MiB.
POSITIONS = 1 << 13
# Smallest length of a group that comes alone, and smallest step between two such lengths.
_STEP = 8

Features = Callable[[PlacedExamples], dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Groups of examples, usually one example each, that are computed in batches of one shape.

    Attributes:
      seq_len: T.
      rows: B.
      members: int64, group indices, ascending; the last batch may have empty rows.
    """

    seq_len: int
    rows: int
    members: np.ndarray

    def batches(self) -> Iterator[np.ndarray]:
        """Yield the members of each batch, at most B; one empty batch if there are none."""
        for first in range(0, max(1, len(self.members)), self.rows):
            yield self.members[first : first + self.rows]


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
    """Apply a function to examples, one group per row.

    Args:
      function: jitted, (params, batch) -> {name: `Output`}.
      params: first argument to `function`.
      examples: M examples.
      vocabulary: the vocabulary of their tokens.
      longest: maximum tokens per group.
      features: returns the batch arrays beyond the core batch.
      on_tokens: called after each batch with its token count.
      group: N, consecutive examples per row.

    Returns:
      {name: array} without padding, in example order: [M, ...] per example, [tokens of all M, ...] per token,
      [M / 2, ...] per pair and [M / N, ...] per row.
    """
    lengths = examples.lengths().astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    count = len(lengths)
    sizes = {"example": count, "token": int(lengths.sum()), "pair": count // 2, "row": count // group}
    results: dict[str, np.ndarray] = {}
    # Without examples, one batch of an empty row still gives each output its name, shape and dtype.
    nothing = [Bucket(min(SHORTEST, longest), 1, np.array([], np.int64))]
    for bucket in sort(lengths.reshape(-1, group).sum(axis=1), longest) or nothing:
        for groups in bucket.batches():
            members = (groups[:, None] * group + np.arange(group)).ravel()
            ragged = examples.take(members)
            # Rows beyond the last group stay empty (-1), so that the last batch has the same shape.
            places_BN = np.arange(bucket.rows * group).reshape(bucket.rows, group)
            rows_BN = np.where(places_BN < len(members), places_BN, -1)
            placed = place(ragged, rows_BN, bucket.seq_len, vocabulary)
            batch: Any = core(placed) | features(placed)
            outputs = jax.device_get(function(params, batch))
            # Batches are sorted by length. These indices write each result back to its original position.
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


# Shorter computations show no bar.
_SECONDS = 3
# Seconds between two progress lines in a log file.
_SECONDS_IN_A_FILE = 30


def bar(tokens: int) -> tqdm:
    """Return a progress bar over this many tokens; `bar.update(tokens)` advances it."""
    return tqdm(
        total=tokens,
        unit=" tokens",
        unit_scale=True,
        delay=_SECONDS,
        mininterval=0.1 if sys.stderr.isatty() else _SECONDS_IN_A_FILE,
        leave=False,
        file=sys.stderr,
        dynamic_ncols=True,
    )
