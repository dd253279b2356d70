"""One loop over two engines, JAX and ONNX Runtime: records are encoded, computed in batches, and answered in order.

Nothing here imports JAX, so that ONNX files are used without it.
"""

import dataclasses
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from tqdm import tqdm

from bertjax.data.batch import PlacedExamples
from bertjax.data.examples import Examples, Ragged, Vocabulary, add_special_tokens
from bertjax.data.framing import Ids, truncate
from bertjax.data.labeled.base import WHERE, LabeledExamples, LabeledFormat, Record
from bertjax.data.tokenizer import Tokenizer
from bertjax.inference.records import checked, read_file, read_inputs, single_field, with_answer, with_best
from bertjax.objectives.host import Host, Output
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import Allowed

# Number of records whose results are in memory at the same time.
PART = 1 << 13
# Positions of a row without examples.
_EMPTY = 32


class EncodedExamples(Examples, Protocol):
    """Examples made from records; a group has at most T tokens in total.

    Attributes:
      notes: {what was changed, such as texts that were cut: number of records}.
    """

    notes: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Groups of examples, usually one example each, that are computed in batches of one shape.

    Attributes:
      seq_len: T.
      rows: B.
      members: int64, group indices; the last batch may have empty rows.
    """

    seq_len: int
    rows: int
    members: np.ndarray

    def batches(self) -> Iterator[np.ndarray]:
        """Yield the members of each batch, at most B; one empty batch if there are none."""
        for first in range(0, max(1, len(self.members)), self.rows):
            yield self.members[first : first + self.rows]


class Engine(Protocol):
    """What computes the outputs of a pipeline."""

    def buckets(self, lengths: np.ndarray, longest: int) -> list[Bucket]:
        """Sort groups of examples into buckets.

        Args:
          lengths: tokens per group, int [M], at most `longest`.
          longest: maximum T.
        """
        ...

    def __call__(self, ragged: Ragged, bucket: Bucket) -> dict[str, Output]:
        """Return the outputs for a batch of examples, as numpy arrays without padding: [M, ...], [tokens, ...]."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Pipeline:
    """One way to use a model. A subclass defines `encode` and `predictions`, and for JAX `outputs`.

    Further fields of a subclass are its options.

    Attributes:
      model: the model that computes the outputs.
      is_readable: whether predictions can be printed as text.
    """

    model: Any
    is_readable: ClassVar[bool] = True

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of required record fields, each a text."""
        return ("text",)

    @property
    def list_field(self) -> str:
        """Name of a list of texts that a record may have in place of the fields; empty for none."""
        return ""

    @property
    def array(self) -> str:
        """Name of the output that a .npy file can hold; empty for none."""
        return ""

    @property
    def remarks(self) -> list[str]:
        """Lines to print before the predictions."""
        return []

    def read(self, path: str) -> list[Record]:
        """Return the records of a file.

        Raises:
          UserError: the file cannot be read, or has a bad record.
        """
        return read_file(path, self.fields)

    def with_answers(self, path: str, predictions: Iterator[dict[str, Any]]) -> Iterator[str] | None:
        """Yield the lines of a file with the predictions in them; None for files without a place for them."""
        return None

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.model.tokenizer

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the tokenizer."""
        return Vocabulary.of(self.tokenizer)

    @functools.cached_property
    def seq_len(self) -> int:
        """T, the maximum tokens per row."""
        return self.model.lengths.example

    @property
    def group(self) -> int:
        """Number of consecutive examples in one row, computed together."""
        return 1

    def encode(self, records: list[Record]) -> EncodedExamples:
        """Return the examples for records.

        Raises:
          UserError: a record is unusable; the message names its place.
        """
        raise TypeError(f"{type(self).__name__} has no encode()")

    def features(self, placed: PlacedExamples) -> dict[str, np.ndarray]:
        """Return inputs of `outputs` beyond the core batch; each row holds one group of examples."""
        return {}

    def outputs(self, params: dict, batch: dict[str, Any]) -> dict[str, Output]:
        """Return arrays with declared axes, traced by JAX; N, the examples per row, is `group`."""
        raise TypeError(f"{type(self).__name__} has no outputs()")

    def predictions(self, outputs: dict[str, np.ndarray], examples: Any) -> list[dict[str, Any]]:
        """Return one prediction per record, as JSON values.

        Args:
          outputs: arrays from `outputs`, as `run` returns them.
          examples: result of `encode`.
        """
        raise TypeError(f"{type(self).__name__} has no predictions()")

    def add_special_tokens(self, records: list[Record], encoded: Ids) -> LabeledExamples:
        """Return one example `[CLS] text [SEP]` of at most T tokens per record, without labels.

        Args:
          records: the records behind the texts.
          encoded: token ids per text.
        """
        segments, _, notes = truncate(encoded, None, self.seq_len)
        ragged = add_special_tokens(segments, None, self.vocabulary, labels={})
        return LabeledExamples(ragged, records, record_of=np.arange(len(records)), notes=notes)


@dataclasses.dataclass(frozen=True, eq=False)
class TaskPipeline(Pipeline):
    """Predicts what a model was fine-tuned for, for records without labels. A subclass has `objective` and `examples`.

    Attributes:
      top: number of classes in `probabilities`, most probable first; 0 for all, in class order.
      columns: (setting of the examples, column) pairs, if columns differ from those of the training file.
      threshold: in place of the `threshold` of the objective; None for that one.
    """

    top: int = 0
    columns: tuple[tuple[str, str | int], ...] = ()
    threshold: float | None = None

    def __post_init__(self):
        Allowed(least=0, hint="0 gives the probabilities of all classes").check("top", self.top)

    @property
    def objective(self) -> Host:
        """What the model predicts."""
        raise TypeError(f"{type(self).__name__} has no objective")

    @property
    def examples(self) -> LabeledFormat:
        """The format of the files that it was trained on."""
        raise TypeError(f"{type(self).__name__} has no examples")

    @property
    def fields(self) -> tuple[str, ...]:
        return self.examples.inputs

    @property
    def list_field(self) -> str:
        return self.examples.list_input

    @property
    def group(self) -> int:
        return self.objective.traits.group

    def read(self, path: str) -> list[Record]:
        return read_inputs(self.examples, path, self.objective.classes)

    def with_answers(self, path: str, predictions: Iterator[dict[str, Any]]) -> Iterator[str] | None:
        tags = itertools.chain.from_iterable(prediction["prediction"] for prediction in predictions)
        return self.examples.with_answers(os.path.expanduser(path), tags, self.objective.classes)

    def encode(self, records: list[Record]) -> LabeledExamples:
        """Return the examples for records, without labels and other fields that the model does not read."""
        # Labels in the file are dropped: a prediction must not depend on them, and they may be unknown to the model.
        field = self.list_field  # empty for most formats, as the header of a column may be
        names = [(field,) if isinstance(record.get(field), list) else self.fields for record in records]
        return self.encode_labeled(
            [{name: record[name] for name in (*own, WHERE)} for own, record in zip(names, records, strict=True)]
        )

    def encode_labeled(self, records: list[Record]) -> LabeledExamples:
        """Return the examples for records, with labels if they have some."""
        return self.examples.encode(records, self.tokenizer, self.seq_len, self.objective.classes)

    def predictions(self, outputs: dict[str, np.ndarray], examples: LabeledExamples) -> list[dict[str, Any]]:
        # A long text may have several examples; objectives merge those with the same record.
        records = [examples.records[number] for number in examples.record_of]
        predictions = self.objective.predictions(outputs, examples.ragged, records)
        if not self.top:
            return predictions
        if not all(isinstance(record.get("probabilities"), dict) for record in predictions):
            raise UserError(f"top={self.top} has no effect on a model without probabilities of classes; leave it out")
        return [with_best(record, self.top) for record in predictions]


@dataclasses.dataclass(frozen=True)
class Request:
    """Records encoded for a pipeline, in parts.

    Attributes:
      pipeline: the pipeline that computes them.
      parts: records and their examples, per part.
    """

    pipeline: Pipeline
    parts: list[tuple[list[Record], EncodedExamples]]

    @property
    def records(self) -> list[Record]:
        """All records."""
        return [record for records, _ in self.parts for record in records]

    @property
    def tokens(self) -> int:
        """Number of tokens to compute."""
        return sum(int(examples.lengths().sum()) for _, examples in self.parts)

    @property
    def notes(self) -> dict[str, int]:
        """{what was changed, such as texts that were cut: number of records}, over all parts."""
        totals: dict[str, int] = {}
        for _, examples in self.parts:
            for note, count in examples.notes.items():
                totals[note] = totals.get(note, 0) + count
        return totals


def inputs_of(pipeline: Pipeline, records: Sequence[Record]) -> list[Record]:
    """Return the records with what the pipeline reads of them, and their places."""
    names = {*pipeline.fields, pipeline.list_field, WHERE}
    return [{name: value for name, value in record.items() if name in names} for record in records]


class Model:
    """A model ready for inference. A subclass defines `engine` and `task`."""

    def engine(self, pipeline: Pipeline) -> Engine:
        """Return what computes the outputs of a pipeline."""
        raise TypeError(f"{type(self).__name__} has no engine()")

    def task(self, **options: Any) -> TaskPipeline:
        """Return the pipeline for what the model was fine-tuned for.

        Raises:
          UserError: it was not fine-tuned, or an option is out of range.
        """
        raise TypeError(f"{type(self).__name__} has no task()")

    def predict(self, records: Sequence[str | Record]) -> list[dict[str, Any]]:
        """Return a fine-tuned model's prediction for each record.

        Args:
          records: records with the fields that the model was trained on, labels ignored; plain texts if there is one
            field. A tagger also takes the `words` of a sentence, a list.

        Raises:
          UserError: a record lacks a field or is blank, or the model was not fine-tuned.
        """
        pipeline = self.task()
        rows = [r if isinstance(r, dict) else {single_field(pipeline.fields): r} for r in records]
        return list(self.predictions(self.request(pipeline, checked(rows, pipeline.fields, pipeline.list_field))))

    def answers(self, pipeline: Pipeline, records: list[Record]) -> list[dict[str, Any]]:
        """Return the answer to each record, without the fields that the model reads."""
        answered = self.predictions(self.request(pipeline, records))
        return [{name: value for name, value in answer.items() if name not in pipeline.fields} for answer in answered]

    def request(self, pipeline: Pipeline, records: list[Record]) -> Request:
        """Encode all records first, so that a bad record is found before anything is computed.

        Raises:
          UserError: there are no records, or a record is unusable.
        """
        if not records:
            raise UserError("there is nothing to predict; give at least one sentence")
        # In parts: outputs for all records of a large file would not fit in memory.
        parts = [records[first : first + PART] for first in range(0, len(records), PART)]
        return Request(pipeline, [(part, pipeline.encode(part)) for part in parts])

    def outputs(
        self, request: Request, on_tokens: Callable[[int], object] = lambda tokens: None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the arrays for each part of the records, as returned by `run`.

        Args:
          request: the records.
          on_tokens: called after each batch with its token count.
        """
        for _, examples in request.parts:
            yield run(self.engine(request.pipeline), request.pipeline, examples, on_tokens)

    def predictions(
        self, request: Request, on_tokens: Callable[[int], object] = lambda tokens: None
    ) -> Iterator[dict[str, Any]]:
        """Yield each record's fields together with its prediction, in order.

        Raises:
          UserError: a prediction would overwrite a field of its record.
        """
        pipeline = request.pipeline
        for (records, examples), outputs in zip(request.parts, self.outputs(request, on_tokens), strict=True):
            for record, prediction in zip(records, pipeline.predictions(outputs, examples), strict=True):
                yield with_answer(record, prediction, (*pipeline.fields, pipeline.list_field))


def run(
    engine: Engine, pipeline: Pipeline, examples: Examples, on_tokens: Callable[[int], object] = lambda tokens: None
) -> dict[str, np.ndarray]:
    """Compute the outputs of examples, one group per row.

    Args:
      engine: computes a batch.
      pipeline: has T and the group.
      examples: M examples.
      on_tokens: called after each batch with its token count.

    Returns:
      {name: array} without padding, in example order: [M, ...] per example, [tokens of all M, ...] per token,
      [M / 2, ...] per pair and [M / N, ...] per row.
    """
    group, lengths = pipeline.group, examples.lengths().astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    count = len(lengths)
    sizes = {"example": count, "token": int(lengths.sum()), "pair": count // 2, "row": count // group}
    results: dict[str, np.ndarray] = {}
    # Without examples, one batch of an empty row still gives each output its name, shape and dtype.
    nothing = [Bucket(min(_EMPTY, pipeline.seq_len), 1, np.array([], np.int64))]
    for bucket in engine.buckets(lengths.reshape(-1, group).sum(axis=1), pipeline.seq_len) or nothing:
        for groups in bucket.batches():
            members = (groups[:, None] * group + np.arange(group)).ravel()
            ragged = examples.take(members)
            # Batches are sorted by length. These indices write each result back to its original position.
            cells = {
                "example": members,
                "token": ragged.spread(starts[members]) + ragged.token_index,
                "pair": members[::2] // 2,
                "row": groups,
            }
            for name, output in engine(ragged, bucket).items():
                values, per = output.array, output.per
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
