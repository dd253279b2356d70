"""The pipeline interface: encode records, compute outputs on the device, turn outputs into predictions."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Protocol, cast

import jax
import numpy as np

from bertjax.config.config import Config, from_dict
from bertjax.config.export import Export
from bertjax.data.batch import PlacedExamples
from bertjax.data.examples import Examples, Vocabulary, add_special_tokens
from bertjax.data.framing import Ids, truncate
from bertjax.data.labeled.base import LabeledExamples, Record
from bertjax.inference.records import read_file
from bertjax.objectives.base import Objective
from bertjax.objectives.outputs import Output

Arrays = dict[str, jax.Array]


def config_of(model: Export) -> Config:
    """Return the configuration of a stored model.

    Raises:
      UserError: the settings are damaged.
      Untrusted: they name a module that has not been imported.
    """
    return from_dict(model.read_settings)


class EncodedExamples(Examples, Protocol):
    """Examples made from records; a group has at most T tokens in total.

    Attributes:
      notes: {what was changed, such as texts that were cut: number of records}.
    """

    notes: dict[str, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Pipeline:
    """One way to use a model. A subclass defines `encode`, and outputs and predictions unless its objective has them.

    Further fields of a subclass are its options.

    Attributes:
      model: the model that computes the outputs.
    """

    model: Export

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of required record fields, each a text."""
        return ("text",)

    @property
    def list_field(self) -> str:
        """Name of a list of texts that a record may have in place of the fields; empty for none."""
        return ""

    def read(self, path: str) -> list[Record]:
        """Return the records of a file.

        Raises:
          UserError: the file cannot be read, or has a bad record.
        """
        return read_file(path, self.fields)

    def with_answers(self, path: str, predictions: Iterator[dict[str, Any]]) -> Iterator[str] | None:
        """Yield the lines of a file with the predictions in them; None for files without a place for them."""
        return None

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the model's tokenizer."""
        return Vocabulary.of(self.model.tokenizer)

    @functools.cached_property
    def seq_len(self) -> int:
        """T, the maximum tokens per row."""
        return self.model.lengths.example

    @property
    def objective(self) -> Objective:
        """The objective that provides outputs and predictions, unless the pipeline overrides both."""
        raise TypeError(f"{type(self).__name__} has no objective")

    @property
    def group(self) -> int:
        """Number of consecutive examples in one row, computed together."""
        return 1

    def encode(self, records: list[Record]) -> EncodedExamples:
        """Host: return the examples for records.

        Raises:
          UserError: a record is unusable; the message names its place.
        """
        raise TypeError(f"{type(self).__name__} has no encode()")

    def features(self, placed: PlacedExamples) -> dict[str, np.ndarray]:
        """Host: return inputs of `outputs` beyond the core batch; each row holds one group of examples."""
        return {}

    def outputs(self, params: dict, batch: Arrays) -> dict[str, Output]:
        """Device: return arrays with declared axes; N, the examples per row, is `group`."""
        return self.objective.outputs(self.objective.model(self.model.encoder), params, batch)

    def predictions(self, outputs: dict[str, np.ndarray], examples: EncodedExamples) -> list[dict[str, Any]]:
        """Host: return one prediction per record, as JSON values.

        Args:
          outputs: arrays from `outputs`, as `bertjax.inference.buckets.run` returns them.
          examples: result of `encode`.
        """
        # A long text may have several examples; objectives merge those with the same record.
        labeled = cast(LabeledExamples, examples)
        records = [labeled.records[number] for number in labeled.record_of]
        return self.objective.predictions(outputs, labeled.ragged, records)

    def add_special_tokens(self, records: list[Record], encoded: Ids) -> LabeledExamples:
        """Return one example `[CLS] text [SEP]` of at most T tokens per record, without labels.

        Args:
          records: the records behind the texts.
          encoded: token ids per text.
        """
        segments, _, notes = truncate(encoded, None, self.seq_len)
        ragged = add_special_tokens(segments, None, self.vocabulary, labels={})
        return LabeledExamples(ragged, records, record_of=np.arange(len(records)), notes=notes)
