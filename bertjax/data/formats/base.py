"""The contract of an example format: how data becomes examples; of a token store's documents, block by block."""

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from bertjax.data.examples import Examples
from bertjax.data.store import Split, TokenStore

# Sentences that a block walks, give or take a document: what is held in memory, however large the split is.
BLOCK_SENTENCES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive examples of a plan.

    The tokens of the examples are those of the documents walked, less the lost and with the repeated ones.

    Attributes:
      ranges: int64 [E, columns of the format], token ranges of the store's split.
      lost_tokens: tokens of the documents walked that the walk puts into no example.
      repeated_tokens: tokens that examples hold besides, as partners taken from elsewhere.
    """

    ranges: np.ndarray
    lost_tokens: int
    repeated_tokens: int


@dataclasses.dataclass(frozen=True)
class ExampleFormat:
    """How data becomes examples; the fields of a subclass are its choices.

    Attributes:
      kind: the name that a configuration knows the format by; a subclass sets it as its default, nobody else does.
      labels: names of the labels that every example carries.
    """

    kind: str = dataclasses.field(init=False)
    labels: ClassVar[tuple[str, ...]] = ()


@dataclasses.dataclass(frozen=True)
class TextFormat(ExampleFormat):
    """How the text of a token store becomes examples."""

    def blocks(self, split: Split, seq_len: int, seed: int) -> Iterator[Block]:
        """One pass over the documents of a split; the same examples in the same order, however they are blocked.

        Args:
          split: `documents` may begin anywhere in `sentences` and end before its end: only what lies between belongs.
          seq_len: T, the most tokens of an example.
          seed: of all that is drawn.

        Raises:
          UserError: the split or `seq_len` cannot serve the format.
        """
        raise TypeError(f"{type(self).__name__} has no blocks()")

    def open(self, store: TokenStore, split: str, ranges: Path) -> Examples:
        """The examples whose ranges, those of all blocks, were saved as the .npy file `ranges`."""
        raise TypeError(f"{type(self).__name__} has no open()")


def document_runs(split: Split) -> Iterator[tuple[Split, int, int]]:
    """Goes through the documents in runs of about BLOCK_SENTENCES sentences, each at least one document.

    Yields:
      (split, start, stop): documents start..stop-1 are a run. The split is a copy, which maps the files anew, so that
      the pages read for one run are let go before the next.
    """
    documents = np.asarray(split.documents)
    start, end = 0, len(documents) - 1
    while start < end:
        reached = int(np.searchsorted(documents, documents[start] + BLOCK_SENTENCES, side="right")) - 1
        stop = max(start + 1, reached)
        yield copy.copy(split), start, stop
        start = stop


def walk(following: np.ndarray, start: int = 0) -> np.ndarray:
    """The indices met on the way from `start` until `following` (int [n], ascending steps) leads out of the array."""
    steps, at, met = following.tolist(), start, []
    while at < len(steps):
        met.append(at)
        at = steps[at]
    return np.array(met, np.int64)
