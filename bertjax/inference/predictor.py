"""A loaded model with its pipelines, each compiled once: JAX as an engine.

Groups of examples are sorted into buckets with doubling lengths. All batches in a bucket have one shape. A group that
comes alone is padded to a finer length: it is a question that somebody waits for, and on a CPU its time grows with the
padding.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from bertjax.config.config import config_of
from bertjax.config.export import Export
from bertjax.data.batch import core, place
from bertjax.data.examples import Ragged
from bertjax.data.formats import FORMATS
from bertjax.data.labeled.base import LabeledFormat
from bertjax.inference.base import Bucket, Model, Pipeline, TaskPipeline
from bertjax.inference.embed import Embed
from bertjax.inference.fill import Fill, masked_lm
from bertjax.inference.likelihood import LogLikelihood, PseudoLogLikelihood
from bertjax.inference.records import records_of
from bertjax.models.layers import float32_products
from bertjax.objectives.base import Objective
from bertjax.objectives.host import Output, regroup
from bertjax.runtime.errors import UserError


def has_predictions(model: Export) -> bool:
    """Return whether a model's objective has predictions, and its format can encode records without labels."""
    try:
        [settings, *_] = model.settings["tasks"].values()
        # Only the format's class is looked up here: a format may come with bertjax while its objective needs a trusted
        # import.
        if not issubclass(FORMATS.class_of(settings["examples"]["kind"]), LabeledFormat):
            return False  # pretrained: the objective is not imported
    except (KeyError, ValueError, TypeError, AttributeError):
        pass  # the settings have no such entry: the defaults apply, or building the configuration refuses them
    task = config_of(model).task
    if not isinstance(task.examples, LabeledFormat):
        return False
    return type(task.objective).predictions is not Objective.predictions and bool(task.examples.inputs)


@dataclasses.dataclass(frozen=True, eq=False)
class FineTuned(TaskPipeline):
    """Applies the objective that the model was fine-tuned for to records without labels."""

    def __post_init__(self):
        super().__post_init__()
        if not has_predictions(self.model):
            others = "--do=embed" if masked_lm(self.model) is None else "--do=fill or --do=embed"
            raise UserError(f"the model was not fine-tuned to predict something for each record; use {others}")
        if len(tasks := self.model.settings["tasks"]) > 1:
            raise UserError(
                f"the model was fine-tuned on {', '.join(tasks)}; choose one with --task or bertjax.predictor(task=...)"
            )

    @functools.cached_property
    def examples(self) -> LabeledFormat:
        return cast(LabeledFormat, config_of(self.model).task.examples).with_columns(dict(self.columns))

    @functools.cached_property
    def objective(self) -> Objective:
        task = config_of(self.model).task
        if self.threshold is None:
            return task.objective
        if "threshold" not in {field.name for field in dataclasses.fields(task.objective)}:
            raise UserError(f"threshold={self.threshold:g} has no effect on objective.kind={task.kind}; leave it out")
        return dataclasses.replace(cast(Any, task.objective), threshold=self.threshold)

    @property
    def remarks(self) -> list[str]:
        """One line per setting tuned during evaluation: the value that predictions use."""
        lines, traits = [], self.objective.traits
        for name in traits.tuned_settings:
            value = getattr(self.objective, name)
            if name == "threshold" and self.threshold is not None:
                continue
            if value is not None:
                lines.append(f"objective.{name}={value:.4f}, as it was tuned on the held-out file of the training")
            # Without a temperature, probabilities are simply those of the model, as in a converted one.
            elif name != "temperature":
                use = f"use {traits.untuned[name]:g}" if name in traits.untuned else "do without it"
                lines.append(f"objective.{name} was not tuned: no evaluation at this step; predictions {use}")
        return lines

    @functools.cached_property
    def seq_len(self) -> int:
        """T of the training, which a group of examples shares."""
        return self.model.lengths.row

    def outputs(self, params: dict, batch: dict[str, Any]) -> dict[str, Output]:
        return self.objective.outputs(self.objective.model(self.model.encoder), params, batch)


SHORTEST = 32
# Positions per full batch. Larger batches are hardly faster on a CPU; one BERT-base activation takes 24 MiB.
POSITIONS = 1 << 13
# Smallest length of a group that comes alone, and smallest step between two such lengths.
_STEP = 8


class JaxEngine(NamedTuple):
    """An engine, see `bertjax.inference.base.Engine`.

    Attributes:
      function: jitted, (params, batch) -> {name: `Output`}.
      params: its first argument.
      pipeline: has the vocabulary, the group and the features.
    """

    function: Callable[[dict, Any], dict[str, Output]]
    params: Any
    pipeline: Pipeline

    def buckets(self, lengths: np.ndarray, longest: int) -> list[Bucket]:
        return sort(lengths, longest)

    def __call__(self, ragged: Ragged, bucket: Bucket) -> dict[str, Output]:
        group = self.pipeline.group
        # Rows beyond the last group stay empty (-1), so that the last batch has the same shape.
        places_BN = np.arange(bucket.rows * group).reshape(bucket.rows, group)
        rows_BN = np.where(places_BN < len(ragged.ids), places_BN, -1)
        placed = place(ragged, rows_BN, bucket.seq_len, self.pipeline.vocabulary)
        batch: Any = core(placed) | self.pipeline.features(placed)
        outputs = jax.device_get(self.function(self.params, batch))
        return {name: Output(values, outputs[name].per) for name, values in regroup(outputs, batch).items()}


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
