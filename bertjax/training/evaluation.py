"""Evaluate held-out rows with fixed masks: metrics summed over all rows, task scores, and a few samples."""

import copy
import dataclasses
import functools
import math
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec as P

from bertjax.data.labeled.base import WHERE, LabeledExamples, Record
from bertjax.data.pipeline import Feed
from bertjax.data.store import TokenStore
from bertjax.models.layers import float32_products
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.host import Output, Sample, regroup
from bertjax.objectives.slots import slots_of, with_slots
from bertjax.objectives.wrapper import tuned, unwrapped
from bertjax.runtime.devices import BATCH_AXES
from bertjax.training.feeds import Feeds
from bertjax.training.loss import Loss, count_micro_batches
from bertjax.training.parallel.sharding import put_global
from bertjax.training.results.scores import Scores, content_id, is_lower_better, scores_of, scores_of_records
from bertjax.training.setup import Setup
from bertjax.training.stages import last_stage

# Name of the main held-out set, which every run has.
HELDOUT = "heldout"


def eval_step(loss: Loss, params: dict, frozen: dict | None, batch: Arrays) -> dict[str, tuple]:
    """Return {metric: (sum, weight)} for a batch, including a loss per term."""
    layout, objective = loss.layout, loss.objective

    def of_shard(params, frozen, batch, keys):
        params, frozen = layout.gather_params(params), layout.gather_params(frozen)
        sums, metrics, _ = loss.terms(params, frozen, batch, keys, is_training=False)
        weights = objective.weights(batch)
        # Add sums and weights separately: a mean of per-device means overweights devices with few labels.
        return layout.psum(metrics | {f"{term}_loss": (total, weights[term]) for term, total in sums.items()})

    # Slots are not exported. Fresh ones give a checkpoint and its export the same scores.
    frozen = with_slots(frozen, slots_of(objective, loss.own(params)))
    specs = (layout.specs(params), layout.specs(frozen), P(BATCH_AXES), P(BATCH_AXES))
    keys = loss.keys(0, len(batch["tokens_BT"]))  # the same random draws in every evaluation
    with float32_products(loss.model.config.execution.dtype):
        return layout.shard_map(of_shard, specs, P())(params, frozen, batch, keys)


def outputs(loss: Loss, params: dict, batch: Arrays) -> dict[str, Output]:
    """Return the objective's outputs for a batch."""
    layout = loss.layout

    def of_shard(params, batch):
        return loss.objective.outputs(loss.model, loss.own(layout.gather_params(params)), batch)

    with float32_products(loss.model.config.execution.dtype):
        return layout.shard_map(of_shard, (layout.specs(params), P(BATCH_AXES)), P(BATCH_AXES))(params, batch)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation on held-out rows.

    Attributes:
      metrics: {metric: value}, named `<task>/<metric>` if there are several tasks.
      baselines: the same metrics for simple baselines.
      samples: examples with the model's best guesses.
      predictions: predictions of the objective, if it makes any; with several tasks, each has a `task`.
      rank: value for comparing checkpoints, lower is better: the first task's `best_metric`, negated if higher is
        better. Infinity if no held-out row has this metric.
      scores: metrics per example (labeled files) or per batch (text), named like `metrics`.
      further: {name: evaluation} for additional held-out sets.
      ema: the same for the moving average of the params; None without `optimizer.ema_decay`.
    """

    metrics: dict[str, float]
    baselines: dict[str, float]
    samples: list[Sample]
    predictions: list[Record]
    rank: float
    scores: dict[str, Scores] = dataclasses.field(default_factory=dict)
    further: dict[str, "Evaluation"] = dataclasses.field(default_factory=dict)
    ema: "Evaluation | None" = None

    @property
    def by_set(self) -> dict[str, "Evaluation"]:
        """{held-out set: evaluation}; the first is `heldout`."""
        return {HELDOUT: self} | self.further

    def of_all(self, field: Literal["metrics", "baselines", "scores"]) -> dict[str, Any]:
        """Return a field on all sets; metrics on further sets are named `<set>/<metric>`."""
        further = {f"{name}/{key}": v for name, part in self.further.items() for key, v in getattr(part, field).items()}
        return getattr(self, field) | further


class Evaluator:
    """Evaluates params on all tasks of a run, and on further held-out sets.

    Args:
      setup: what the run computes with.
      feeds: its data.
      frozen: {task: frozen params} of the setup, see `init_frozen`.
      on_batch: called after every batch, in all processes after the same ones; its errors end the evaluation.
    """

    def __init__(
        self, setup: Setup, feeds: Feeds, frozen: Mapping[str, dict | None], on_batch: Callable[[], None] = lambda: None
    ):
        self._qualified = setup.config.qualified
        self._tasks = {name: _TaskEvaluator(setup, name, feeds, frozen[name], on_batch) for name in setup.losses}
        self._further = {key: self._tasks[key[0]].on(feed, key[1]) for key, feed in feeds.further_heldout.items()}

    def __call__(self, params: dict) -> Evaluation:
        """Evaluate all tasks; the first one gives the rank."""
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
            # A threshold tuned on the main set is applied here: tuning it on each set would flatter the scores.
            self._qualified(task, name): evaluate(params, evaluations[task].metrics)
            for (task, name), evaluate in self._further.items()
        }
        rank = next(iter(evaluations.values())).rank
        return Evaluation(merged("metrics"), merged("baselines"), samples, predictions, rank, merged("scores"), further)


class _TaskEvaluator:
    """Evaluates params on one task. Its functions are compiled once."""

    def __init__(self, setup: Setup, task: str, feeds: Feeds, frozen: dict | None, on_batch: Callable[[], None]):
        self._setup, self._task, self._frozen, self._on_batch = setup, task, frozen, on_batch
        self._config, self._objective, self._store = setup.config, setup.losses[task].objective, feeds.store_of(task)
        self._read_from(feeds.heldout[task])

        def once(function: Callable) -> jax.stages.Wrapped:
            return setup.once(lambda: jax.jit(functools.partial(function, setup.losses[task])), function, task)

        self._step, self._outputs = once(eval_step), once(outputs)
        # Of a labeled file, token counts need all of its texts, which few objectives read.
        self._counts = self._store.unigram_counts("train") if has_baselines(unwrapped(self._objective)) else np.zeros(0)

    def on(self, feed: Feed, name: str) -> "_TaskEvaluator":
        """Return an evaluator for other rows that shares this one's compiled functions.

        Args:
          feed: the other rows.
          name: where they come from: a corpus source, or a further file of a labeled format.
        """
        # A shallow copy shares the jitted functions, so that equal shapes are not compiled again.
        other = copy.copy(self)
        other._read_from(feed, name)
        return other

    def _read_from(self, feed: Feed, source: str = "") -> None:
        self._feed, (self._plan,), self._source = feed, feed.plans, source
        self._rows = min(self._config.eval.rows or self._plan.counts.rows, self._plan.counts.rows)

    def __call__(self, params: dict, tuned_by: Mapping[str, float] = types.MappingProxyType({})) -> Evaluation:
        """Evaluate all rows; empty rows fill up the last batch.

        Args:
          params: model params.
          tuned_by: metrics that hold tuned settings, such as a threshold, from the main held-out set.
        """
        # A teacher changes the loss; scores are those of the task.
        objective = unwrapped(tuned(self._objective, tuned_by))
        totals: dict[str, np.ndarray] = {}
        baselines: dict[str, np.ndarray] = {}
        collected, ids, samples = [], [], []
        # Outputs cost a second forward pass and a gather over processes, so they need a method that reads them.
        kind = type(objective)
        has_outputs = kind.score is not Objective.score or kind.predictions is not Objective.predictions
        by_batch: list[tuple[int, dict[str, np.ndarray]]] = []
        for batch in self._batches():
            arrays = put_global(batch, self._setup.layout.mesh)
            sums = jax.device_get(self._step(params, self._frozen, arrays))
            _add(totals, sums)
            # Content identifies a batch, so that two runs can be compared batch by batch.
            by_batch.append((content_id(batch["tokens_BT"].tobytes()), sums))
            if has_baselines(objective):
                _add(baselines, objective.baselines(batch, self._counts))
            if has_outputs:
                collected.append(regroup(self._outputs_of(params, arrays), batch))
                # Negative ids are empty slots.
                ids.append(batch["example_ids_BN"][batch["example_ids_BN"] >= 0])
            if kind.samples is not Objective.samples and not samples and self._config.eval.samples:
                samples = self._samples(params, batch, arrays)
            self._on_batch()
        metrics, predictions = _ratios(totals), []
        scores = {
            name: scores_of((unit for unit, _ in by_batch), (sums[name] for _, sums in by_batch)) for name in metrics
        }
        if collected:
            outputs = {name: np.concatenate([part[name] for part in collected]) for name in collected[0]}
            scored, known = np.concatenate(ids), self._plan.examples
            is_labeled = isinstance(known, LabeledExamples)
            records = [known.records[each] for each in known.record_of[scored]] if is_labeled else []
            examples = known.take(scored)
            metrics |= objective.score(outputs, examples, records)
            # Predictions use what the scores have tuned, as those of the export will.
            predictions = tuned(objective, metrics).predictions(outputs, examples, records)
            if len(predictions) == len(records) and all("probabilities" in answer for answer in predictions):
                predictions = [a | {WHERE: r.get(WHERE, "")} for a, r in zip(predictions, records, strict=True)]
            by_record = objective.scores(outputs, examples, records).items()
            scores |= {name: scores_of_records(scored) for name, scored in by_record}
        text_term = objective.traits.text_term
        loss = f"{text_term}_loss"
        if loss in metrics and (factor := self._bits_per_byte()):
            name = f"{text_term}_bits_per_byte"
            metrics[name] = factor * metrics[loss]
            scores[name] = scores[loss]._replace(sums=scores[loss].sums * (factor, 1.0))
        return Evaluation(metrics, _ratios(baselines), samples, predictions, _rank(objective, metrics), scores)

    def _bits_per_byte(self) -> float:
        """Return the factor from nats per token to bits per byte of held-out text; 0 without text.

        Bits per byte are comparable between vocabularies. For a masked LM they are the cost of predicting each token
        given all others, which is not a code length for the text.
        """
        if not isinstance(self._store, TokenStore):
            return self._store.tokens_per_byte(self._source or HELDOUT) / math.log(2)
        manifest = self._store.manifest
        counts = manifest["counts"]["heldout"][self._source] if self._source else manifest["splits"]["heldout"]
        return counts["tokens"] / counts["bytes"] / math.log(2)

    def _batches(self):
        config, shards = self._config, self._setup.layout.shards
        stage = last_stage(config.stages, config.tasks, self._task)
        # A batch is as large as one micro-batch of training, so it fits into memory if training does.
        # Round up: a small held-out set still needs a row per shard.
        rows = -(-min(stage.batch, self._rows) // shards)
        batch = rows // count_micro_batches(rows, stage.seq_len, config.runtime.micro_tokens) * shards
        for first in range(0, self._rows, batch):
            ordinals = np.arange(first, first + batch)
            # All batches have the same shape: a shorter last one would be compiled separately.
            yield self._feed.batch(np.where(ordinals < self._rows, ordinals, -1))

    def _outputs_of(self, params: dict, arrays: Arrays) -> dict[str, Output]:
        """Gather the outputs of all rows in every process, so that each computes the same scores."""
        return multihost_utils.process_allgather(self._outputs(params, arrays), tiled=True)

    def _samples(self, params: dict, batch: dict, arrays: Arrays) -> list[Sample]:
        outputs = self._outputs_of(params, arrays)
        first = slice(0, self._config.eval.samples)
        return unwrapped(self._objective).samples(
            {name: output.array[first] for name, output in outputs.items()},
            {name: values[first] for name, values in batch.items()},
            self._store.tokenizer,
        )


def _add(totals: dict[str, np.ndarray], parts: dict[str, tuple[float | np.ndarray, float]]) -> None:
    """Add each metric's sum (or sums over alternatives) and weight to its total; the weight comes last."""
    for name, part in parts.items():
        # float64, because a float32 total stops growing by small amounts after many batches.
        totals[name] = totals.get(name, 0.0) + np.append(*part).astype(np.float64)


def _ratios(totals: dict[str, np.ndarray]) -> dict[str, float]:
    # With several alternatives (a baseline per class, for example), the best one counts. No weight, no metric.
    return {name: float(max(sums) / weight) for name, (*sums, weight) in totals.items() if weight}


def _rank(objective: Objective, metrics: Mapping[str, float]) -> float:
    """Return `Evaluation.rank`; infinity if the metric is missing or not finite."""
    value = metrics.get(objective.best_metric, math.nan)
    # Comparisons with NaN are always false; infinity ranks a diverged checkpoint last.
    if not math.isfinite(value):
        return math.inf
    return value if is_lower_better(objective.best_metric) else -value


def has_baselines(objective: Objective) -> bool:
    """Return whether an objective's `baselines` measure the same quantities as its terms.

    Baselines are printed beside the model's metrics. A subclass that overrides its terms inherits baselines for other
    terms: a loss over all tokens would be compared with a baseline over masked ones. Such a class must define
    `baselines` as well, even if it keeps the inherited ones: `baselines = MaskedLM.baselines`.
    """

    def depth(name: str) -> int:
        """Return how far up the class hierarchy a method is defined; 0 for the class itself."""
        return next(index for index, cls in enumerate(type(objective).__mro__) if name in vars(cls))

    return depth("baselines") <= min(depth(name) for name in ("weights", "terms_of", "terms"))
