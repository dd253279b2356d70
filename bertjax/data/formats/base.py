"""The contract of an example format: how data becomes examples, for a token store block by block."""

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from bertjax.data.examples import Examples
from bertjax.data.framing import special_tokens
from bertjax.data.store import Split, TokenStore
from bertjax.errors import UserError

# About how many sentences a block covers. It bounds the memory, whatever the size of the split.
BLOCK_SENTENCES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive examples of a plan.

    The tokens of the examples are the tokens of the block's documents without the lost and with the repeated tokens.

    Attributes:
      ranges: int64 [E, columns of the format], token ranges of the store's split.
      lost_tokens: tokens of the block's documents that are in no example.
      repeated_tokens: tokens that examples have in addition, as partners from elsewhere.
    """

    ranges: np.ndarray
    lost_tokens: int
    repeated_tokens: int


@dataclasses.dataclass(frozen=True)
class ExampleFormat:
    """How data becomes examples; the fields of a subclass are its settings.

    Attributes:
      kind: the name of the format in a configuration; each subclass sets its own as the default.
      max_tokens: the most tokens of an example, special tokens included; 0 for as many as a row has room for. Longer
        rows hold several examples, and only examples must fit into the position table of the model.
      labels: names of the labels of every example.
      labels_by_class: whether a label is an array with an entry for each class.
      shortest: the fewest tokens of a whole example, special tokens included.
      token_settings: names of the settings that are numbers of tokens in an example.
    """

    kind: str = dataclasses.field(init=False)
    max_tokens: int = dataclasses.field(default=0, kw_only=True)
    labels: ClassVar[tuple[str, ...]] = ()
    labels_by_class: ClassVar[bool] = False
    shortest: ClassVar[int] = 1 + special_tokens(1)
    token_settings: ClassVar[tuple[str, ...]] = ("max_tokens",)

    def __post_init__(self):
        if self.max_tokens < 0:
            raise UserError(f"examples.max_tokens={self.max_tokens} must not be negative; 0 fills the row")

    def longest(self, seq_len: int) -> int:
        """Return the most tokens of an example in rows of T tokens."""
        return min(self.max_tokens or seq_len, seq_len)


@dataclasses.dataclass(frozen=True)
class TextFormat(ExampleFormat):
    """How the text of a token store becomes examples.

    Attributes:
      version: version of the plans, which is raised when the same settings give other examples.
      is_random: whether examples follow from the seed.
      orders_sentences: whether its labels follow from the order of the sentences of a document.
    """

    version: ClassVar[int] = 2
    is_random: ClassVar[bool] = True
    orders_sentences: ClassVar[bool] = False

    @property
    def is_of_one_source(self) -> bool:
        """Whether an example may only have text of one source of a corpus.

        A random partner in another language would be told by its script alone.
        """
        return False

    def identity(self) -> dict:
        """Return the settings that the examples follow from, as plain values."""
        settings = dataclasses.asdict(self)
        if not self.max_tokens:  # plans from before this setting keep their fingerprints
            del settings["max_tokens"]
        return settings

    def blocks(self, split: Split, seq_len: int, seed: int) -> Iterator[Block]:
        """Yield the examples of one pass over a split; the size of the blocks changes neither them nor their order.

        Args:
          split: the split; its `documents` may be a part of `sentences`, and only that part is used.
          seq_len: the most tokens of an example (`longest`).
          seed: the seed of all random numbers.

        Raises:
          UserError: the format cannot make examples of this split or `seq_len`.
        """
        raise TypeError(f"{type(self).__name__} has no blocks()")

    def open(self, store: TokenStore, split: str, ranges: Path) -> Examples:
        """Return the examples with the ranges of all blocks, which are in the .npy file `ranges`."""
        raise TypeError(f"{type(self).__name__} has no open()")


def document_runs(split: Split) -> Iterator[tuple[Split, int, int]]:
    """Divide the documents into runs of about BLOCK_SENTENCES sentences, each at least one document.

    Yields:
      (split, start, stop): documents start..stop-1 are a run. The split is a copy with its own memory maps, so that
      the pages read for one run are freed before the next.
    """
    documents = np.asarray(split.documents)
    start, end = 0, len(documents) - 1
    while start < end:
        reached = int(np.searchsorted(documents, documents[start] + BLOCK_SENTENCES, side="right")) - 1
        stop = max(start + 1, reached)
        yield copy.copy(split), start, stop
        start = stop


def walk(following: np.ndarray, start: int = 0) -> np.ndarray:
    """Return the indices from `start`, each the `following` (int [n]) of the one before, until the end of the array."""
    steps, index, visited = following.tolist(), start, []
    while index < len(steps):
        visited.append(index)
        index = steps[index]
    return np.array(visited, np.int64)
