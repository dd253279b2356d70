"""Evaluation on held-out rows with fixed masks: sums over all of them, the objective's scores, and a few samples."""

import copy
import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec as P

from bertjax.config import Config
from bertjax.data.examples import Examples
from bertjax.data.labeled.base import LabeledExamples, Record
from bertjax.data.pipeline import Feed
from bertjax.data.store import TokenStore
from bertjax.mesh import BATCH_AXES
from bertjax.models.precision import float32_products
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.outputs import Output, Sample, ScoredByRecord, regroup
from bertjax.objectives.slots import slots_of, with_slots
from bertjax.training.config import Stage
from bertjax.training.feeds import Feeds
from bertjax.training.micro_batches import count_micro_batches
from bertjax.training.parallel.sharding import put_global
from bertjax.training.param_paths import with_heads_of
from bertjax.training.program import Program, TaskProgram
from bertjax.training.results.scores import Scores, content_id, scores_of, scores_of_records
from bertjax.training.step import StepContext, shard_keys

# The name of the held-out documents or file that every run has.
HELDOUT = "heldout"


def eval_step(context: StepContext, params: dict, frozen: dict | None, batch: Arrays) -> dict[str, tuple]:
    """Return {metric: (sum, weight)} of one batch, including the losses of the terms."""
    layout, objective = context.layout, context.objective

    def of_shard(params, frozen, batch, keys):
        params, frozen = layout.gather_params(params), layout.gather_params(frozen)
        own_params = with_heads_of(params, context.own_heads)
        sums, metrics = objective.terms(context.model, own_params, frozen, batch, keys, False)[:2]
        weights = objective.all_weights(batch)
        return layout.psum(metrics | {f"{term}_loss": (total, weights[term]) for term, total in sums.items()})

    # Slots are not part of a model: a checkpoint and its export have the same scores.
    frozen = with_slots(frozen, slots_of(objective, with_heads_of(params, context.own_heads)))
    specs = (layout.specs(params), layout.specs(frozen), P(BATCH_AXES), P(BATCH_AXES))
    keys = shard_keys(context, 0, len(batch["tokens_BT"]))  # the same random draws in every evaluation
    with float32_products(context.model.config.execution.dtype):
        return layout.shard_map(of_shard, specs, P())(params, frozen, batch, keys)


def outputs(context: StepContext, params: dict, batch: Arrays) -> dict[str, Output]:
    """Return the objective's outputs for a batch."""
    layout = context.layout

    def of_shard(params, batch):
        own_params = with_heads_of(layout.gather_params(params), context.own_heads)
        return context.objective.outputs(context.model, own_params, batch)

    with float32_products(context.model.config.execution.dtype):
        return layout.shard_map(of_shard, (layout.specs(params), P(BATCH_AXES)), P(BATCH_AXES))(params, batch)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation on held-out rows.

    Attributes:
      metrics: {metric: value}, named `<task>/<metric>` if there are several tasks.
      baselines: the same metrics of simple baselines.
      samples: examples with the model's best guesses.
      predictions: the objective's predictions, if it makes any; each has its `task` if there are several.
      scores: metrics by example of a labeled file, or by batch of held-out rows, named like the metrics.
      further: the evaluations of further held-out files, by name.
      rank: the value by which checkpoints are compared, lower is better: the `best_metric` of the first task's
        objective, negative unless it is a loss. Infinity if no held-out row has it.
    """

    metrics: dict[str, float]
    baselines: dict[str, float]
    samples: list[Sample]
    predictions: list[Record]
    rank: float
    scores: dict[str, Scores] = dataclasses.field(default_factory=dict)
    further: dict[str, "Evaluation"] = dataclasses.field(default_factory=dict)

    @property
    def by_set(self) -> dict[str, "Evaluation"]:
        """The evaluation of each held-out set; the first one is `heldout`."""
        return {HELDOUT: self} | self.further

    @property
    def all_metrics(self) -> dict[str, float]:
        """The metrics of all sets; those of a further file are named `<set>/<metric>`."""
        return self._of_all("metrics")

    @property
    def all_baselines(self) -> dict[str, float]:
        """The baselines of all sets, named like the metrics."""
        return self._of_all("baselines")

    @property
    def all_scores(self) -> dict[str, Scores]:
        """The scores of all sets, named like the metrics."""
        return self._of_all("scores")

    def _of_all(self, field: str) -> dict[str, Any]:
        further = {f"{name}/{key}": v for name, part in self.further.items() for key, v in getattr(part, field).items()}
        return getattr(self, field) | further


class Evaluator:
    """Evaluates params of one program on the held-out rows of all of its tasks, and on further held-out files.

    Args:
      on_batch: called after every batch, in all processes after the same ones; an error of it ends the evaluation.
    """

    def __init__(self, program: Program, feeds: Feeds, on_batch: Callable[[], None] = lambda: None):
        self._qualified = program.config.qualified
        self._tasks = {name: _TaskEvaluator(task, feeds, on_batch) for name, task in program.tasks.items()}
        self._further = {key: self._tasks[key[0]].on(feed, key[1]) for key, feed in feeds.further_heldout.items()}

    def __call__(self, params: dict) -> Evaluation:
        """Evaluate all tasks; the rank is that of the first one."""
        evaluations = {name: evaluate(params) for name, evaluate in self._tasks.items()}

        def merged(field: str) -> dict[str, Any]:
            return {
                self._qualified(task, name): value
                for task, evaluation in evaluations.items()
                for name, value in getattr(evaluation, field).items()
            }

        samples = [sample for evaluation in evaluations.values() for sample in evaluation.samples]
        predictions = [
            {"task": task} | record if len(evaluations) > 1 else record
            for task, evaluation in evaluations.items()
            for record in evaluation.predictions
        ]
        further = {
            self._qualified(task, name): evaluate(params, evaluations[task].metrics)
            for (task, name), evaluate in self._further.items()
        }
        rank = next(iter(evaluations.values())).rank
        return Evaluation(merged("metrics"), merged("baselines"), samples, predictions, rank, merged("scores"), further)


class _TaskEvaluator:
    """Evaluates params on one task. Its functions are compiled once."""

    def __init__(self, task: TaskProgram, feeds: Feeds, on_batch: Callable[[], None]):
        self._task, self._program, self._store, self._on_batch = task, task.program, feeds.store_of(task.name), on_batch
        self._read_from(feeds.heldout[task.name])
        self._step, self._outputs = task.jitted(eval_step), task.jitted(outputs)
        self._counts = self._store.unigram_counts("train")

    def on(self, feed: Feed, name: str) -> "_TaskEvaluator":
        """Return an evaluator of the same task on other rows, with the same compiled functions.

        Args:
          name: the source of a corpus, or the further file of a labeled format, that the rows are from.
        """
        other = copy.copy(self)
        other._read_from(feed, name)
        return other

    def _read_from(self, feed: Feed, source: str = "") -> None:
        self._feed, (self._plan,), self._source = feed, feed.plans, source
        self._rows = min(self._program.config.eval.rows or self._plan.counts.rows, self._plan.counts.rows)

    def __call__(self, params: dict, tuned_by: Mapping[str, float] = types.MappingProxyType({})) -> Evaluation:
        """Evaluate all rows; the last batch is filled up with empty rows.

        Args:
          params: the params of the model.
          tuned_by: metrics of the evaluation that has tuned what an objective leaves open.
        """
        objective = tuned(self._task.objective, tuned_by)
        totals: dict[str, np.ndarray] = {}
        baselines: dict[str, np.ndarray] = {}
        collected, ids, samples = [], [], []
        by_batch: list[tuple[int, dict[str, np.ndarray]]] = []
        for batch in self._batches():
            arrays = put_global(batch, self._program.mesh)
            sums = jax.device_get(self._step(params, self._task.frozen, arrays))
            _add(totals, sums)
            by_batch.append((content_id(batch["tokens_BT"].tobytes()), sums))
            if has_baselines(objective):
                _add(baselines, objective.baselines(batch, self._counts))
            if _has_outputs(objective):
                collected.append(regroup(self._outputs_of(params, arrays), batch))
                ids.append(batch["example_ids_BN"][batch["example_ids_BN"] >= 0])
            if not samples and self._program.config.eval.samples:
                samples = self._samples(params, batch, arrays)
            self._on_batch()
        metrics, predictions = _ratios(totals), []
        scores = {
            name: scores_of((unit for unit, _ in by_batch), (sums[name] for _, sums in by_batch)) for name in metrics
        }
        if collected:
            outputs = {name: np.concatenate([part[name] for part in collected]) for name in collected[0]}
            examples = self._plan.examples.take(np.concatenate(ids))
            records = self._records(np.concatenate(ids))
            metrics |= objective.score(outputs, examples, records)
            predictions = objective.predictions(outputs, examples, records)
            by_record = objective.scores(outputs, examples, records) if isinstance(objective, ScoredByRecord) else {}
            scores |= {name: scores_of_records(scored) for name, scored in by_record.items()}
        loss = f"{objective.text_term}_loss"
        if loss in metrics and (factor := self._bits_per_byte()):
            name = f"{objective.text_term}_bits_per_byte"
            metrics[name] = factor * metrics[loss]
            scores[name] = scores[loss]._replace(sums=scores[loss].sums * (factor, 1.0))
        return Evaluation(metrics, _ratios(baselines), samples, predictions, _rank(objective, metrics), scores)

    def _bits_per_byte(self) -> float:
        """Return the bits a byte of the held-out text for a loss of 1 nat a token, 0 without a corpus.

        A loss in bits per byte can be compared between vocabularies. Of a masked LM it is what the predicted tokens
        cost, each with the others in view, and no code of the text.
        """
        if not isinstance(self._store, TokenStore):
            return 0.0
        manifest = self._store.manifest
        counts = manifest["counts"]["heldout"][self._source] if self._source else manifest["splits"]["heldout"]
        return counts["tokens"] / counts["bytes"] / math.log(2)

    def _records(self, ids: np.ndarray) -> list[Record]:
        examples = self._plan.examples
        return [examples.records[record] for record in examples.record_of[ids]] if _has_records(examples) else []

    def _batches(self):
        stage, shards = self._last_stage(), self._program.layout.shards
        rows = -(-min(stage.batch, self._rows) // shards)
        batch = rows // count_micro_batches(rows, stage.seq_len, self._program.config.runtime.micro_tokens) * shards
        for first in range(0, self._rows, batch):
            ordinals = np.arange(first, first + batch)
            yield self._feed.batch(np.where(ordinals < self._rows, ordinals, -1))

    def _last_stage(self) -> Stage:
        config = self._program.config
        return next(stage for stage in reversed(config.stages) if self._task.name in stage.among(config.tasks))

    def _outputs_of(self, params: dict, arrays: Arrays) -> dict[str, Output]:
        """Return the outputs of all rows in every process; each then computes the same scores."""
        return multihost_utils.process_allgather(self._outputs(params, arrays), tiled=True)

    def _samples(self, params: dict, batch: dict, arrays: Arrays) -> list[Sample]:
        outputs = self._outputs_of(params, arrays)
        first = slice(0, self._program.config.eval.samples)
        return self._task.objective.samples(
            {name: output.array[first] for name, output in outputs.items()},
            {name: values[first] for name, values in batch.items()},
            self._store.tokenizer,
        )


def tuned(objective: Objective, metrics: Mapping[str, float]) -> Objective:
    """Return the objective with the settings that an evaluation with these metrics has tuned, if they were None."""
    open_settings = [name for name in objective.tuned_settings if getattr(objective, name) is None and name in metrics]
    if not open_settings:
        return objective  # a copy would lack what `bind` added
    return dataclasses.replace(objective, **{name: metrics[name] for name in open_settings})


def tuned_config(config: Config, metrics: Mapping[str, float]) -> Config:
    """Return the configuration with what an evaluation of all its tasks has tuned, such as a threshold."""
    tasks = {
        name: dataclasses.replace(task, objective=tuned(task.objective, config.metrics_of(name, metrics)))
        for name, task in config.tasks.items()
    }
    return dataclasses.replace(config, tasks=tasks)


def _add(totals: dict[str, np.ndarray], parts: dict[str, tuple[float | np.ndarray, float]]) -> None:
    """Add to each total the sum, or the sums of alternatives, and the weight, which comes last."""
    for name, part in parts.items():
        totals[name] = totals.get(name, 0.0) + np.append(*part).astype(np.float64)


def _ratios(totals: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: float(max(sums) / weight) for name, (*sums, weight) in totals.items() if weight}


def _rank(objective: Objective, metrics: Mapping[str, float]) -> float:
    """Return the rank of an `Evaluation`; infinity if no held-out row has the metric, or if it is not finite."""
    value = metrics.get(objective.best_metric, math.nan)
    if not math.isfinite(value):
        return math.inf
    return value if objective.best_metric.endswith("_loss") else -value


def _has_outputs(objective: Objective) -> bool:
    """Return whether an objective scores or predicts from its outputs."""
    kind = type(objective)
    return kind.score is not Objective.score or kind.predictions is not Objective.predictions


def has_baselines(objective: Objective) -> bool:
    """Return whether the `baselines` of an objective are those of its own terms.

    A baseline is printed beside a metric of the model, so both must be the same quantity. A class that overrides how
    its terms are computed inherits the baselines of other terms: the loss of a weighted sum over all tokens would stand
    beside the cross entropy of masked ones. Such a class defines `baselines` too, also if they are those of its base:
    `baselines = MaskedLM.baselines`.
    """

    def depth(name: str) -> int:
        """Return how many classes are between an objective and the one that defines a method."""
        return next(index for index, cls in enumerate(type(objective).__mro__) if name in vars(cls))

    return depth("baselines") <= min(depth(name) for name in ("weights", "terms_of", "terms"))


def _has_records(examples: Examples) -> bool:
    return isinstance(examples, LabeledExamples)
