"""A loaded model with its pipelines, each compiled once."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np

from bertjax.config.export import Export
from bertjax.inference.base import Model, Pipeline, TaskPipeline
from bertjax.inference.buckets import JaxEngine
from bertjax.inference.embed import Embed
from bertjax.inference.fill import Fill
from bertjax.inference.finetuned import FineTuned, has_predictions
from bertjax.inference.likelihood import LogLikelihood, PseudoLogLikelihood
from bertjax.inference.masked import masked_lm
from bertjax.inference.records import records_of
from bertjax.models.layers import float32_products

PIPELINES: dict[str, type[Pipeline]] = {"task": FineTuned, "fill": Fill, "embed": Embed}


class Predictor(Model):
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

    def task(self, **options: Any) -> TaskPipeline:
        return cast(TaskPipeline, self.pipeline(FineTuned, **options))

    def engine(self, pipeline: Pipeline) -> JaxEngine:
        return JaxEngine(self._functions[pipeline], self._params, pipeline)
