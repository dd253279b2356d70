"""Evaluation on held-out rows with fixed masks: sums over all of them, the objective's scores, and a few samples."""

import dataclasses
import functools

import jax
import numpy as np

from bertjax.data.pipeline import Feed
from bertjax.objectives.base import Arrays, Objective, Sample
from bertjax.training.program import Program
from bertjax.training.sharding import put_batches
from bertjax.training.step import StepContext


def eval_step(context: StepContext, params: dict, frozen: dict | None, batch: Arrays) -> dict[str, tuple]:
    """{metric: (sum, weight)} of one batch, the losses of the terms among them."""
    key = jax.random.key(0)  # for objectives that draw on the device: the same in every evaluation
    sums, metrics = context.objective.terms(context.module, params, frozen, batch, key, False)
    weights = context.objective.weights(batch)
    return metrics | {f"{term}_loss": (total, weights[term]) for term, total in sums.items()}


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Metrics over the held-out rows, those of the baselines, and samples."""

    metrics: dict[str, float]
    baselines: dict[str, float]
    samples: list[Sample]


class Evaluator:
    """Evaluates params of one program; compiled once.

    Args:
      program: what is evaluated.
      feed: the rows, of one plan; the program's held-out ones by default.
    """

    def __init__(self, program: Program, feed: Feed | None = None):
        self._program = program
        self._feed = feed or program.heldout_feed
        (self._plan,) = self._feed.plans
        self._rows = min(program.config.eval.rows, self._plan.counts.rows)
        self._step = jax.jit(functools.partial(eval_step, program.context))
        self._outputs = jax.jit(functools.partial(program.objective.outputs, program.module))
        self._counts = program.store.unigram_counts("train")

    def __call__(self, params: dict) -> Evaluation:
        """Evaluates all rows; the last batch is filled up with empty ones."""
        objective = self._program.objective
        totals: dict[str, np.ndarray] = {}
        baselines: dict[str, np.ndarray] = {}
        collected, ids, samples = [], [], []
        for batch in self._batches():
            arrays = jax.tree.map(lambda x: x[0], put_batches([batch], self._program.mesh))
            _add(totals, jax.device_get(self._step(params, self._program.frozen, arrays)))
            _add(baselines, objective.baselines(batch, self._counts))
            if _has_score(objective):
                collected.append(_per_example(jax.device_get(self._outputs(params, arrays)), batch))
                ids.append(batch["example_ids_BN"][batch["example_ids_BN"] >= 0])
            if not samples and self._program.config.eval.samples:
                samples = self._samples(params, batch, arrays)
        scores = {}
        if collected:
            outputs = {name: np.concatenate([part[name] for part in collected]) for name in collected[0]}
            scores = objective.score(outputs, self._plan.examples.take(np.concatenate(ids)))
        return Evaluation(_ratios(totals) | scores, _ratios(baselines), samples)

    def _batches(self):
        devices = self._program.mesh.devices.size
        batch = -(-self._program.config.stages[-1].batch // devices) * devices
        for first in range(0, self._rows, batch):
            ordinals = np.arange(first, first + batch)
            yield self._feed.batch(np.where(ordinals < self._rows, ordinals, -1))

    def _samples(self, params: dict, batch: dict, arrays: Arrays) -> list[Sample]:
        outputs = jax.device_get(self._outputs(params, arrays))
        shown = slice(0, self._program.config.eval.samples)
        return self._program.objective.samples(
            {name: values[shown] for name, values in outputs.items()},
            {name: values[shown] for name, values in batch.items()},
            self._program.store.tokenizer,
        )


def _add(totals: dict[str, np.ndarray], parts: dict[str, tuple[float, float]]) -> None:
    for name, part in parts.items():
        totals[name] = totals.get(name, np.zeros(2)) + np.array(part, np.float64)


def _ratios(totals: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: float(total / weight) for name, (total, weight) in totals.items() if weight}


def _has_score(objective: Objective) -> bool:
    return type(objective).score is not Objective.score


def _per_example(outputs: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of the examples that exist, without the rows: `_BN...` per example, `_BT...` per token."""
    chosen = {"BN": batch["example_ids_BN"] >= 0, "BT": batch["examples_BT"] > 0}
    return {name: values[chosen[name.rsplit("_", 1)[-1][:2]]] for name, values in outputs.items()}
