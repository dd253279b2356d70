"""Score a model with some heads or neurons masked, and rank the ones that remain.

The masks are arguments of compiled functions. All batches have one shape, and short examples share rows, so each
function is compiled once for all masks.
"""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.analysis.material import Encoded, Material
from bertjax.analysis.reduce import put
from bertjax.analysis.subject import Subject
from bertjax.comparison import resampling
from bertjax.comparison.resampling import Difference
from bertjax.data.labeled.base import Record
from bertjax.data.packing import assign, pack
from bertjax.inference.predictor import SHORTEST
from bertjax.models import taps
from bertjax.models.config import EncoderConfig
from bertjax.models.model import Model
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.host import Output, is_real
from bertjax.training.loss import normalized, total_loss
from bertjax.training.results.scores import is_lower_better

# {name among `taps.MASKS`: mask}
Masks = Mapping[str, Any]
# Progress callback: receives the token count of each finished batch.
Update = Callable[[int], object]

# Limits: positions per batch, examples per row. Masks per example take L x F x B x N numbers, so batches stay small.
POSITIONS, SLOTS = 1 << 12, 16
# Resamples for metrics such as F1, which are recomputed from the outputs of all examples (about 2 ms each).
SCORE_RESAMPLES = 200


def ignore(tokens: int) -> None:
    """Show no progress."""


def row_sums(
    objective: Objective, model: Model, params: dict, frozen: dict | None, batch: Arrays, masks: Masks
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Device: return {`<term>_loss` or metric: (sum, weight)}, float32 [B], one pair per batch row.

    Args:
      objective: the objective that scores the rows.
      model: its Linen module.
      params: model parameters.
      frozen: result of `Objective.frozen_params`.
      batch: the core batch and the features.
      masks: [L, H] and [L, F].
    """

    # `Objective.terms` sums over the batch, but resampling needs one number per row. So each row becomes a batch of
    # one, and vmap restores the batch.
    def of_row(row: Arrays, number: jax.Array):
        row = {name: values[None] for name, values in row.items()}
        key = jax.random.fold_in(jax.random.key(0), number)
        sums, metrics = objective.terms(model, params, frozen, row, key, False, {"encoder": dict(masks)})
        weights = objective.weights(row)
        return metrics | {f"{term}_loss": (total, weights[term]) for term, total in sums.items()}

    return jax.vmap(of_row)(batch, jnp.arange(len(batch["tokens_BT"])))


def sums_of_importance(
    objective: Objective,
    model: Model,
    params: dict,
    frozen: dict | None,
    batch: Arrays,
    masks: Masks,
    weights: Arrays,
    step: jax.Array,
) -> Arrays:
    """Device: return {name: |gradient| of each example's loss share, summed over examples}, [L, H] and [L, F].

    An example's share is the sum over terms of loss weight * S / W. S is summed over the example, W over all examples.
    An empty slot has gradient 0.

    Args:
      masks: [L, H] and [L, F], the point at which the gradient is taken.
      weights: {term: W} over all examples.
      step: training step of the loss weights.
    """
    shape_BN = batch["example_ids_BN"].shape
    # One copy of the mask per example: a single backward pass then yields the gradients of all examples separately.
    of_examples = {name: jnp.broadcast_to(mask[..., None, None], mask.shape + shape_BN) for name, mask in masks.items()}

    def loss(of_examples: Arrays) -> jax.Array:
        key = jax.random.key(0)
        sums, _ = objective.terms(model, params, frozen, batch, key, False, {"encoder": of_examples})
        return total_loss(objective, normalized(sums, weights), step)

    # The absolute value comes before the sum: gradients of different examples must not cancel.
    is_example_BN = batch["example_ids_BN"] >= 0
    return {
        name: jnp.sum(jnp.abs(values) * is_example_BN, axis=(2, 3))
        for name, values in jax.grad(loss)(of_examples).items()
    }


def mask_without(shape: tuple[int, int], pruned: Sequence[int]) -> np.ndarray:
    """Return a float32 mask [L, ...] with 0 at these flat indices and 1 elsewhere."""
    mask = np.ones(int(np.prod(shape)), np.float32)
    mask[np.asarray(pruned, np.int64)] = 0.0
    return mask.reshape(shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """A model's scores under one set of masks.

    Attributes:
      sums: {`<term>_loss` or metric: (sums, weights)}, float64 [U], one entry per unit.
      outputs: {name: output arrays by row}; empty if the metric is a sum.
      loss: the loss, in nats.
      metric: the objective's metric; None if the loss is its only score.
    """

    sums: dict[str, tuple[np.ndarray, np.ndarray]]
    outputs: dict[str, list[np.ndarray]]
    loss: float
    metric: float | None


class Ablation:
    """A model and a material, scored under any masks.

    Resampling draws units. A unit is a row, or a record if records have several examples.

    Attributes:
      objective: the objective that scores the examples.
      metric: metric name; empty if the loss is the only score.
      terms: names of the loss terms.
      has_loss: whether each term has a prediction.
      shapes: {mask name: [L, H] or [L, F]}.
      examples, units: how many there are.
      tokens: token count, the work for each set of masks.

    Args:
      subject: the model.
      encoded: examples that its objective can score.
    """

    def __init__(self, subject: Subject, encoded: Encoded):
        encoder, self.objective, self._step = subject.encoder, encoded.objective, subject.steps
        self.examples, self.tokens, self._encoded = len(encoded), encoded.tokens, encoded
        best = self.objective.best_metric
        self.metric = "" if is_lower_better(best) else best
        self.shapes = {
            taps.HEAD_MASK: (encoder.layers, encoder.heads),
            taps.FEEDFORWARD_MASK: (encoder.layers, encoder.feedforward),
        }
        self._rows_RN, seq_len = packed_rows(encoded)
        # Rows are the units of the bootstrap, because losses are summed per row. If one record has examples in several
        # rows, its rows are drawn together: they are not independent.
        rows_RN = self._rows_RN
        of_rows = encoded.record_of[rows_RN[:, 0]] if _has_several(encoded) else np.arange(len(rows_RN))
        _, self._unit_of = np.unique(of_rows, return_inverse=True)
        self.units = int(self._unit_of.max()) + 1
        # Batches stay on the device: every mask computes all of them again.
        self._host_batches = list(_batches(encoded, self._rows_RN, seq_len))
        self._batches = [put(batch) for batch in self._host_batches]
        self._without_each_head: list[Scores] | None = None
        self._params, self._frozen = subject.params, self.objective.frozen_params(encoder)
        self._row_sums, self._outputs, self._importance = _functions(self.objective, encoder)
        weights = [self.objective.weights(batch) for batch in self._host_batches]
        self.terms = tuple(weights[0])
        # XLNet may predict nothing in a very short text; its loss would then be 0 / 0.
        self.has_loss = all(sum(float(of_batch[term]) for of_batch in weights) > 0.0 for term in self.terms)

    @functools.cached_property
    def unmasked(self) -> Scores:
        """The scores of the whole model."""
        return self.scores({})

    def scores(self, masks: Mapping[str, np.ndarray], update: Update = ignore) -> Scores:
        """Return the scores under masks {name: [L, H] or [L, F]}; a missing mask is all ones."""
        masks = self._complete(masks)
        sums: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        outputs: dict[str, list[np.ndarray]] = {}
        first = 0
        for batch, arrays in zip(self._host_batches, self._batches, strict=True):
            # The last batch may end with empty rows, which score nothing.
            count = int(np.count_nonzero(batch["example_ids_BN"][:, 0] >= 0))
            units = self._unit_of[first : first + count]
            parts = jax.device_get(self._row_sums(self._params, self._frozen, arrays, masks))
            for name, sums_and_weights in parts.items():
                totals = sums.setdefault(name, (np.zeros(self.units), np.zeros(self.units)))
                for total_U, part_B in zip(totals, sums_and_weights, strict=True):
                    # `add.at`, not `+=`: rows of one unit repeat its index.
                    np.add.at(total_U, units, part_B[:count].astype(np.float64))
            # The metric is not a sum over rows (F1, a correlation): keep the outputs and score them all at once.
            if self.metric and self.metric not in parts:
                for name, output in jax.device_get(self._outputs(self._params, arrays, masks)).items():
                    outputs.setdefault(name, []).extend(_by_row(output, batch)[:count])
            first += count
            update(tokens_in(batch))
        means = {
            name: float(total_U.sum() / weight_U.sum()) for name, (total_U, weight_U) in sums.items() if weight_U.any()
        }
        loss = total_loss(self.objective, {term: means[f"{term}_loss"] for term in self.terms}, self._step)
        metric = None
        if self.metric:
            metric = means[self.metric] if self.metric in sums else self._score(outputs, np.arange(self.units))
        return Scores(sums, outputs, loss, metric)

    def without_each_head(self, update: Update = ignore) -> list[Scores]:
        """Return the scores with one head masked, for each head in the order of [L, H]; computed once."""
        if self._without_each_head is None:
            shape = self.shapes[taps.HEAD_MASK]
            masks = (mask_without(shape, [head]) for head in range(shape[0] * shape[1]))
            self._without_each_head = [self.scores({taps.HEAD_MASK: mask}, update) for mask in masks]
        return self._without_each_head

    def importance(self, masks: Mapping[str, np.ndarray], update: Update = ignore) -> dict[str, np.ndarray]:
        """Return {name: I}, float64 [L, H] and [L, F]: |d share of the loss / d mask|, summed over examples.

        If the loss is the mean over examples, this is I_h = E|d L(x) / d xi_h| (Michel et al., 2019, section 4.1). If
        the loss is a mean over predicted tokens, an example's share is proportional to its number of them.

        Args:
          masks: {name: [L, H] or [L, F]}, the point at which the gradient is taken; a missing mask is all ones.
        """
        masks = self._complete(masks)
        weights = {term: np.float32(self.unmasked.sums[f"{term}_loss"][1].sum()) for term in self.terms}
        totals = {name: np.zeros(shape) for name, shape in self.shapes.items()}
        for batch, arrays in zip(self._host_batches, self._batches, strict=True):
            sums = self._importance(self._params, self._frozen, arrays, masks, weights, self._step)
            for name, values in jax.device_get(sums).items():
                totals[name] += values
            update(tokens_in(batch))
        return totals

    def changes(self, masked: Sequence[Scores]) -> dict[str, Difference]:
        """Return {`loss` or metric name: change from the unmasked model}, each with arrays [masks].

        Intervals and p-values come from the paired bootstrap over units. They are NaN with fewer than
        `resampling.LEAST_EXAMPLES` units.
        """

        # The last axis holds (sum, weight) of each term in turn. Dividing after resampling keeps a mean over tokens a
        # mean over tokens.
        def loss(sums: np.ndarray) -> np.ndarray:
            losses = {term: resampling.ratio(sums[..., 2 * i : 2 * i + 2]) for i, term in enumerate(self.terms)}
            return total_loss(self.objective, losses, self._step)

        def compare(names: list[str], metric: resampling.Metric) -> Difference:
            of_unmasked, *of_masked = (
                np.stack([array for name in names for array in scores.sums[name]], axis=-1)
                for scores in (self.unmasked, *masked)
            )
            return resampling.difference(of_unmasked, np.stack(of_masked), metric)

        results = {"loss": compare([f"{term}_loss" for term in self.terms], loss)}
        if self.metric in self.unmasked.sums:
            results[self.metric] = compare([self.metric], resampling.ratio)
        elif self.metric:
            # All masks share the draws of `_resampled_scores`, so the differences are paired.
            drawn_RX = np.stack([self._resampled_scores(scores) for scores in masked], axis=-1)
            values = np.array([scores.metric - self.unmasked.metric for scores in masked])
            results[self.metric] = resampling.of_drawn(values, drawn_RX - self._unmasked_scores_R[:, None], self.units)
        if self.units < resampling.LEAST_EXAMPLES:
            unknown = np.full(len(masked), np.nan)
            results = {name: Difference(change.value, unknown, unknown, unknown) for name, change in results.items()}
        return results

    def _complete(self, masks: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: np.asarray(masks.get(name, np.ones(shape)), np.float32) for name, shape in self.shapes.items()}

    @functools.cached_property
    def _unmasked_scores_R(self) -> np.ndarray:
        return self._resampled_scores(self.unmasked)

    def _resampled_scores(self, scores: Scores) -> np.ndarray:
        draws_RU = np.random.default_rng(0).integers(0, self.units, (SCORE_RESAMPLES, self.units))
        return np.array([self._score(scores.outputs, units) for units in draws_RU])

    def _score(self, outputs: Mapping[str, list[np.ndarray]], units: np.ndarray) -> float:
        """Return the metric over units; a unit drawn twice counts twice."""
        rows = [self._rows_of_units[unit] for unit in units]
        examples = [self._rows_RN[own][self._rows_RN[own] >= 0] for own in rows]
        records = [record for own in examples for record in self._copies(own)]
        values = {name: np.concatenate([parts[row] for own in rows for row in own]) for name, parts in outputs.items()}
        return self.objective.score(values, self._encoded.ragged.take(np.concatenate(examples)), records)[self.metric]

    def _copies(self, examples: np.ndarray) -> list[Record]:
        """Return copies of the records behind the examples of one unit; examples from one record share a copy."""
        # Objectives group examples by record identity (`id`), so a unit drawn twice needs two distinct records.
        copies: dict[int, Record] = {}
        for number in self._encoded.record_of[examples].tolist() if self._encoded.records else ():
            copies.setdefault(number, dict(self._encoded.records[number]))
        return [copies[number] for number in self._encoded.record_of[examples].tolist()] if copies else []

    @functools.cached_property
    def _rows_of_units(self) -> list[np.ndarray]:
        order = np.argsort(self._unit_of, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self._unit_of))[:-1])


# `disabling` and `importance` follow each other on the same model and texts: keep one ablation per model.
_LATEST: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def ablation_of(subject: Subject, material: Material) -> Ablation:
    """Return the ablation of a model on a material; the latest one per model is kept for the next part."""
    of_material, ablation = _LATEST.get(subject, (None, None))
    if of_material is not material:
        ablation = Ablation(subject, material.encoded(subject))
        _LATEST[subject] = material, ablation
    return ablation


def lacks_objective(subject: Subject, materials: Sequence[Material]) -> str:
    """Return why no material can be scored with masks, see `Part.missing`; empty if one can."""
    objectives = [objective for material in materials if (objective := material.objective(subject))]
    if not objectives:
        return "has no head whose loss these texts have; name a fine-tuned model with its labeled file, or a masked LM"
    # Contrastive losses compare the rows of a batch, so a row has no loss of its own.
    if all(objective.traits.needs_global_batch for objective in objectives):
        return "compares the examples of a batch with each other, so that no example has a loss of its own"
    if not scored(subject, materials):
        return "predicts nothing in these texts; name longer texts, or more of them"
    return ""


def scored(subject: Subject, materials: Sequence[Material]) -> list[Material]:
    """Return the materials that a model can be scored on."""
    return [
        material
        for material in materials
        if (objective := material.objective(subject))
        and not objective.traits.needs_global_batch
        and ablation_of(subject, material).has_loss
    ]


def packed_rows(encoded: Encoded) -> tuple[np.ndarray, int]:
    """Return the examples in each row, int64 [R, N] with -1 for an empty slot, and the row length.

    Examples share rows, unless a row is one group or a record has several examples. The row length is the smallest
    power of two that fits the longest example or group.
    """
    lengths = encoded.ragged.lengths
    group = encoded.group
    longest = int(lengths.reshape(-1, group).sum(axis=1).max())
    seq_len = max(SHORTEST, 1 << (longest - 1).bit_length())
    if group > 1 or _has_several(encoded):
        return np.arange(len(lengths)).reshape(-1, group), seq_len
    patterns = pack(np.bincount(lengths, minlength=seq_len + 1), SLOTS)
    rows_RN = assign(lengths, patterns, max(pattern.examples for pattern in patterns))
    return rows_RN.astype(np.int64), seq_len


def _has_several(encoded: Encoded) -> bool:
    """Return whether any record has examples in several rows."""
    of_rows = encoded.record_of[:: encoded.group]
    return bool(encoded.records) and len(np.unique(of_rows)) < len(of_rows)


def _batches(encoded: Encoded, rows_RN: np.ndarray, seq_len: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield rows in equal batches; the last batch may end with empty rows."""
    devices = jax.local_device_count()
    # Equal batches instead of full ones and a rest: one shape is one compilation, and few rows stay empty.
    batches = -(-len(rows_RN) // max(1, POSITIONS // seq_len))
    rows = -(-len(rows_RN) // (batches * devices)) * devices
    for first in range(0, len(rows_RN), rows):
        rows_BN = np.full((rows, rows_RN.shape[1]), -1, np.int64)
        rows_BN[: len(rows_RN) - first] = rows_RN[first : first + rows]
        yield encoded.batch(rows_BN, seq_len, with_objective=True)


def tokens_in(batch: Mapping[str, np.ndarray]) -> int:
    """Return the number of tokens in a batch, the unit of progress."""
    return int(np.count_nonzero(batch["examples_BT"]))


@functools.lru_cache(maxsize=8)
def _functions(objective: Objective, encoder: EncoderConfig) -> tuple[Callable, Callable, Callable]:
    """Return the jitted functions of `Ablation`, shared by all models of one architecture and task."""
    model = objective.model(encoder)
    return tuple(jax.jit(functools.partial(f, objective, model)) for f in (row_sums, _outputs, sums_of_importance))


def _outputs(objective: Objective, model: Model, params: dict, batch: Arrays, masks: Masks) -> dict[str, Output]:
    return objective.outputs(model, params, batch, {"encoder": dict(masks)})


def _by_row(output: Output, batch: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the elements of an output for each row, without padding."""
    is_element = is_real(output.per, batch)
    per_row = is_element.reshape(len(is_element), -1).sum(axis=1)
    return np.split(np.asarray(output.array)[is_element], np.cumsum(per_row)[:-1])
