"""Example formats."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from bertjax.data.examples import Examples
from bertjax.data.store import Split, TokenStore


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive examples of a plan."""

    ranges: np.ndarray
    lost_tokens: int
    repeated_tokens: int


class ExampleFormat(Protocol):
    """A frozen dataclass of choices that turns a split into examples."""

    def blocks(self, split: Split, seq_len: int, seed: int) -> Iterator[Block]:
        """The examples."""

    def open(self, store: TokenStore, split: str, ranges: Path) -> Examples:
        """The examples of a plan that was saved as `ranges`."""
