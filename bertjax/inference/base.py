"""The contract of a use: what a model is asked about records, and how its answer is told."""

import dataclasses
import functools
from typing import Any, Protocol

import jax
import numpy as np

from bertjax.data.batch import PlacedExamples
from bertjax.data.examples import Examples, Vocabulary
from bertjax.data.labeled.base import Record
from bertjax.export import Export

Arrays = dict[str, jax.Array]


class EncodedExamples(Examples, Protocol):
    """Examples of at most T tokens that were made of records.

    Attributes:
      notes: {what happened on the way: to how many}, such as how many texts were cut.
    """

    notes: dict[str, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Use:
    """What a model is used for; further fields of a subclass are its options. `features` has a default.

    Attributes:
      model: the one that is asked.
    """

    model: Export

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of what a record must hold, each a text."""
        return ("text",)

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """Of the model's tokenizer."""
        return Vocabulary.of(self.model.tokenizer)

    @property
    def seq_len(self) -> int:
        """T, the most tokens that the model reads at once."""
        return self.model.encoder.max_positions

    @property
    def group(self) -> int:
        """So many neighboring examples are asked about together, in one row."""
        return 1

    def encode(self, records: list[Record]) -> EncodedExamples:
        """Host: the examples that are asked about.

        Raises:
          UserError: a record that cannot be asked about; says where it is.
        """
        raise TypeError(f"{type(self).__name__} has no encode()")

    def features(self, placed: PlacedExamples) -> dict[str, np.ndarray]:
        """Host: what `outputs` reads besides the core batch; one group of examples sits in each row."""
        return {}

    def outputs(self, params: dict, batch: Arrays) -> Arrays:
        """Device: what the model says, as `<name>_BN...` (per example; N is `group`) or `<name>_BT...` (per token)."""
        raise TypeError(f"{type(self).__name__} has no outputs()")

    def predictions(
        self, outputs: dict[str, np.ndarray], examples: EncodedExamples, records: list[Record]
    ) -> list[dict[str, Any]]:
        """Host: for each record what there is to say of it, fit for JSON.

        Args:
          outputs: those of `outputs`, per example ([M, ...]) or per token ([tokens of all M examples, ...]).
          examples: what `encode` gave.
          records: what it was given.
        """
        raise TypeError(f"{type(self).__name__} has no predictions()")
