"""A loaded model with its pipelines, each compiled once."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from bertjax.config.export import Export
from bertjax.data.labeled.base import Record
from bertjax.inference import buckets
from bertjax.inference.base import EncodedExamples, Pipeline
from bertjax.inference.embed import Embed
from bertjax.inference.fill import Fill
from bertjax.inference.finetuned import FineTuned, has_predictions
from bertjax.inference.likelihood import LogLikelihood, PseudoLogLikelihood
from bertjax.inference.masked import masked_lm
from bertjax.inference.records import checked, records_of, single_field, with_answer
from bertjax.models.layers import float32_products
from bertjax.runtime.errors import UserError

# Number of records whose results are in memory at the same time.
PART = 1 << 13

PIPELINES: dict[str, type[Pipeline]] = {"task": FineTuned, "fill": Fill, "embed": Embed}


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
    def records(self) -> int:
        """Number of records."""
        return sum(len(records) for records, _ in self.parts)

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


class Predictor:
    """A model ready for inference: `bertjax.predictor("runs/tiny/export").fill(["The king is [MASK]."])`.

    Args:
      model: the model, for example `bertjax.config.opening.SavedModel(name).export`.
    """

    def __init__(self, model: Export):
        self.model = model
        self._pipelines: dict[tuple, Pipeline] = {}
        self._functions: dict[Pipeline, Callable] = {}

    @property
    def default(self) -> str:
        """The pipeline that the model was trained for, `task` or `fill`; `embed` if it has no suitable head."""
        if has_predictions(self.model):
            return "task"
        return "embed" if masked_lm(self.model) is None else "fill"

    @functools.cached_property
    def _params(self) -> dict:
        return jax.device_put(self.model.params)

    def fill(self, texts: Sequence[str], top: int = 5) -> list[dict[str, Any]]:
        """Fill every `[MASK]` in each text.

        Args:
          texts: texts that contain `[MASK]`, once or several times.
          top: number of guesses per mask.

        Returns:
          One dict per text: {`text`, `masks`: a list of guesses [{`piece`, `probability`}, ...] for each mask, best
          first, `filled`: the text with the best guess at each mask}.

        Raises:
          UserError: a text is blank or has no mask, or the model has no masked-LM head.
        """
        return list(self.predictions(self.request(self.pipeline(Fill, top=top), records_of(texts))))

    def embed(self, texts: Sequence[str], normalize: bool | None = None, layers: Sequence[int] = ()) -> np.ndarray:
        """Return the mean over each text's hidden states, [CLS] and [SEP] included; float32 [texts, D].

        Args:
          texts: texts; `[MASK]` in them is ordinary text.
          normalize: whether the vectors have length 1; None if the model was trained to compare them by cosine.
          layers: layers whose states are concatenated, 0 for the embeddings; only the encoder's output if empty.

        Raises:
          UserError: a text is blank, or the model has no such layer.
        """
        pipeline = self.pipeline(Embed, normalize=normalize, layers=tuple(layers))
        request = self.request(pipeline, records_of(texts))
        return np.concatenate([outputs["embedding"] for outputs in self.outputs(request)])

    def predict(self, records: Sequence[str | Record]) -> list[dict[str, Any]]:
        """Return a fine-tuned model's prediction for each record.

        Args:
          records: records with the fields that the model was trained on, labels ignored; plain texts if there is one
            field. A tagger also takes the `words` of a sentence, a list.

        Raises:
          UserError: a record lacks a field or is blank, or the model was not fine-tuned.
        """
        pipeline = self.pipeline(FineTuned)
        rows = [r if isinstance(r, dict) else {single_field(pipeline.fields): r} for r in records]
        return list(self.predictions(self.request(pipeline, checked(rows, pipeline.fields, pipeline.list_field))))

    def pseudo_log_likelihoods(self, texts: Sequence[str]) -> np.ndarray:
        """Return pseudo-log-likelihoods in nats (`bertjax.inference.likelihood`); float64 [texts].

        Raises:
          UserError: a text is blank, or the model has no masked-LM head.
        """
        request = self.request(self.pipeline(PseudoLogLikelihood), records_of(texts))
        return np.array([prediction["pseudo_log_likelihood"] for prediction in self.predictions(request)])

    def log_likelihoods(self, texts: Sequence[str]) -> np.ndarray:
        """Return log-likelihoods under a causal model, in nats; float64 [texts].

        Raises:
          UserError: a text is blank, or the model does not predict the next token.
        """
        request = self.request(self.pipeline(LogLikelihood), records_of(texts))
        return np.array([prediction["log_likelihood"] for prediction in self.predictions(request)])

    def pipeline(self, kind: type[Pipeline], **options: Any) -> Pipeline:
        """Return a pipeline for this model; the same options give the same object.

        Raises:
          UserError: the model lacks what the pipeline needs, or an option is out of range.
        """
        key = kind, *sorted(options.items())
        if key not in self._pipelines:
            pipeline = self._pipelines[key] = kind(self.model, **options)
            # One jitted function per pipeline object: JAX then compiles once per shape, however often it is called.
            dtype = self.model.encoder.execution.dtype
            self._functions[pipeline] = jax.jit(float32_products(dtype)(pipeline.outputs))
        return self._pipelines[key]

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
        """Yield the arrays for each part of the records, as returned by `bertjax.inference.buckets.run`.

        Args:
          request: the records.
          on_tokens: called after each batch with its token count.
        """
        pipeline = request.pipeline
        for _, examples in request.parts:
            function, vocabulary = self._functions[pipeline], pipeline.vocabulary
            compute = functools.partial(buckets.run, function, self._params, examples, vocabulary)
            yield compute(pipeline.seq_len, pipeline.features, on_tokens, pipeline.group)

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
