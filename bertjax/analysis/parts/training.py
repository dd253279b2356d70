"""Part `training`: loss and all other parts' numbers over the checkpoints of a run.

Results of several checkpoints are series over training steps, grouped by configuration and seed.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.analysis import drawing, running
from bertjax.analysis.ablation import row_sums
from bertjax.analysis.material import Material
from bertjax.analysis.page import caption
from bertjax.analysis.part import Figure, Part, Result, slug_of
from bertjax.analysis.parts import parts_of
from bertjax.analysis.reduce import Progress, hide, put
from bertjax.analysis.subject import Subject
from bertjax.comparison import resampling
from bertjax.models.model import Model
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.losses import Sums
from bertjax.training.results.seeds import interval_of_mean

# Path of a number within the results of a part, such as ("corpus", "shares", "vertical").
Name = tuple[str, ...]

# Numbers that are positions or bounds: their mean over seeds is meaningless.
_NOT_MEASURED = {"layer", "head", "interval"}

# Settings that may differ between seeds of one configuration.
_OF_A_RUN = ("seed", "data", "eval", "runtime")

# Maximum number of figures per part and of curves per figure. `analysis.json` has all numbers.
MOST_FIGURES, MOST_CURVES = 8, 8


@dataclasses.dataclass(frozen=True)
class Seeds:
    """Runs of one configuration that differ only in the seed; often a single run.

    Attributes:
      name: name on the page.
      steps: steps at which all runs have a checkpoint, ascending.
      subjects: [seed][step].
    """

    name: str
    steps: tuple[int, ...]
    subjects: tuple[tuple[Subject, ...], ...]


class Curve(NamedTuple):
    """Mean over seeds at each step with its 95% interval; with one seed, the interval is the mean."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def seeds_of(subjects: Sequence[Subject]) -> list[Seeds]:
    """Group checkpoints by configuration. Seeds without a common step form groups of their own."""
    runs: dict[Path, dict[int, Subject]] = {}
    for subject in subjects:
        runs.setdefault(subject.saved.folder, {})[subject.step] = subject
    alike: dict[str, list[Path]] = {}
    for folder, checkpoints in runs.items():
        export = next(iter(checkpoints.values())).export
        identity = {key: value for key, value in export.settings.items() if key not in _OF_A_RUN}
        # Paths of data differ between machines; the tokenizer's content does not.
        identity["tokenizer"] = export.tokenizer.fingerprint  # in place of the paths of the data
        alike.setdefault(json.dumps(identity, sort_keys=True), []).append(folder)
    groups = []
    for folders in alike.values():
        common = set.intersection(*(set(runs[folder]) for folder in folders))
        for members in [folders] if common else [[folder] for folder in folders]:
            steps = tuple(sorted(common or runs[members[0]]))
            checkpoints = tuple(tuple(runs[folder][step] for step in steps) for folder in members)
            groups.append(Seeds(_name(members), steps, checkpoints))
    return groups


def _name(folders: Sequence[Path]) -> str:
    names = [folder.absolute().name for folder in folders]
    if len(names) > 1 and all(name.startswith("seed=") for name in names):
        return f"{folders[0].absolute().parent.name} ({len(names)} seeds)"
    return ", ".join(names)


def values_of(result: Result, subject: Subject) -> dict[Name, np.ndarray]:
    """Return a model's numbers that are scalars or have the axes [L] or [L, H]; float64.

    [L + 1] are layers, embeddings included. If a number and an array have the same name, the number is used. Scalars
    below a name of `Result.other_axes` are numbers too.
    """
    layers, heads = subject.encoder.layers, subject.encoder.heads
    shapes = ((), (layers,), (layers + 1,), (layers, heads))
    found = dict(_leaves(result.numbers.get(subject.label)))
    for key, array in result.arrays.items():
        # Array names have the model's label at some level; the rest of the path names the number.
        before, own, after = f"/{key}".partition(f"/{subject.label}/")
        if own:
            found.setdefault(tuple(part for part in f"{before}/{after}".split("/") if part), array)
    return {
        name: np.asarray(array, np.float64)
        for name, array in found.items()
        if not _NOT_MEASURED.intersection(name[-1:])
        and np.shape(array) in (((),) if any(key.startswith(result.other_axes) for key in name[1:]) else shapes)
        and np.asarray(array).dtype.kind in "iuf"
    }


def _leaves(numbers: Any, name: Name = ()) -> Iterator[tuple[Name, np.ndarray]]:
    if isinstance(numbers, Mapping):
        for key, value in numbers.items():
            yield from _leaves(value, (*name, str(key)))
    elif isinstance(numbers, (int, float, np.number, np.ndarray)) and not isinstance(numbers, bool):
        yield name, np.asarray(numbers)
    elif isinstance(numbers, (list, tuple)):
        array = np.array(numbers, dtype=object)  # ragged lists stay Python objects
        if array.ndim <= 2 and all(isinstance(value, (int, float, np.number, type(None))) for value in array.flat):
            yield name, array.astype(np.float64)  # None is NaN


def series_of(result: Result, groups: Sequence[Seeds]) -> dict[Name, dict[str, np.ndarray]]:
    """Return {name: {name of the seeds: values [seeds, steps, ...]}} for all numbers that change."""
    series: dict[Name, dict[str, np.ndarray]] = {}
    for group in groups:
        by_seed = [[values_of(result, subject) for subject in checkpoints] for checkpoints in group.subjects]
        for name in by_seed[0][0] if by_seed[0] else ():
            everywhere = [[values.get(name) for values in row] for row in by_seed]
            # A number must exist, with one shape, in every checkpoint of a group.
            shapes = {None if value is None else value.shape for row in everywhere for value in row}
            if len(shapes) == 1 and None not in shapes:
                series.setdefault(name, {})[group.name] = np.array(everywhere)
    return {name: of_groups for name, of_groups in series.items() if _varies(of_groups)}


def _varies(of_groups: Mapping[str, np.ndarray]) -> bool:
    # Constants, such as the number of examples, make no curve.
    finite = [values[np.isfinite(values)] for values in of_groups.values()]
    distinct = [np.unique(values.reshape(*values.shape[:2], -1), axis=1).shape[1] for values in of_groups.values()]
    return any(count > 1 for count in distinct) and all(len(values) for values in finite)


def curve_of(values: np.ndarray) -> Curve:
    """Return the mean over seeds with its Student t interval.

    Args:
      values: [seeds, steps, ...]; NaN at steps where a seed has no number.
    """
    values = np.asarray(values, np.float64)
    # A mean over a varying number of seeds would jump, so a step needs all of them.
    values = np.where(np.isfinite(values).all(axis=0), values, np.nan)
    return Curve(values.mean(axis=0), *interval_of_mean(values))


class Training(Part):
    """Numbers of checkpoints over training steps, with an interval if a configuration has several seeds.

    The numbers come from the parts before this one, or, if there are none, from all parts that can serve the models.
    """

    name = "training"
    title = "Over training"

    def missing(self, subject: Subject, materials: Sequence[Material]) -> str:
        return "" if subject.step is not None else "is not a checkpoint of a run; name RUN@* for all that it kept"

    def run(self, subjects: Sequence[Subject], materials: Sequence[Material], progress: Progress = hide) -> Result:
        """Return the loss and the other parts' numbers at each step; the guide describes the arrays."""
        groups = seeds_of(subjects)
        # Called by name or from Python, there are no earlier parts: run all of them here.
        results = self.results
        if not results:
            others = [part for part in parts_of(()) if part.name != self.name]
            outcomes = running.run_parts(others, subjects, materials, progress)
            results = {outcome.part.name: outcome.result for outcome in outcomes if outcome.result}
        losses = {material.name: _losses(groups, material, progress) for material in materials}
        losses = {material: curves for material, curves in losses.items() if curves}
        found = {part: series_of(result, groups) for part, result in results.items()}
        by_part: dict[str, dict[str, Any]] = {part: {} for part in found}
        arrays = {}
        for part, names in found.items():
            for name, of_groups in names.items():
                arrays |= {"/".join((part, *name, group)): values for group, values in of_groups.items()}
                if next(iter(of_groups.values())).ndim == 2:
                    curves = {group: curve_of(values) for group, values in of_groups.items()}
                    by_part[part]["/".join(name)] = _as_dicts(curves)
        numbers = {
            "runs": {group.name: {"seeds": len(group.subjects), "steps": list(group.steps)} for group in groups},
            "loss": {material: _as_dicts(curves) for material, curves in losses.items()},
            "parts": by_part,
        }
        figures = [_loss_figure(material, curves, groups) for material, curves in losses.items()]
        for part, names in found.items():
            figures += itertools.islice(_part_figures(part, names, groups), MOST_FIGURES)
        return Result(numbers, arrays, figures, _text(groups, found))


@functools.partial(jax.jit, static_argnames=("objective", "model", "term"))
def row_losses(objective: Objective, model: Model, term: str, params: dict, batch: Arrays) -> Sums:
    """Device: return (S, W) of a term per row, float32 [B]."""
    return row_sums(objective, model, params, None, batch, {})[f"{term}_loss"]


def _losses(groups: Sequence[Seeds], material: Material, progress: Progress) -> dict[str, Curve]:
    """Return loss curves by name of the seeds, for the first loss term; empty if no objective applies."""
    curves = {}
    for group in groups:
        sums = [[_sums(subject, material, progress) for subject in checkpoints] for checkpoints in group.subjects]
        if any(part is None for row in sums for part in row):
            continue
        totals_STC = np.array([[part.sum(axis=0) for part in row] for row in sums])
        if not totals_STC[..., 1].all():  # the texts have no predictions
            continue
        # Several seeds, which may have held-out texts of their own, give an interval over seeds. One run has only the
        # interval over its examples.
        if len(group.subjects) > 1:
            curves[group.name] = curve_of(resampling.ratio(totals_STC))
        else:
            sums_TMC = np.array(sums[0])  # the same examples with the same masks for every checkpoint
            sums_TMC = sums_TMC[:, sums_TMC[..., 1].all(axis=0)]  # drop rows without predictions
            curves[group.name] = Curve(*resampling.estimate(sums_TMC, resampling.ratio))
    return curves


def _sums(subject: Subject, material: Material, progress: Progress) -> np.ndarray | None:
    """Return sum and weight of the loss per row, float64 [M, 2]."""
    encoded = material.encoded(subject)
    if encoded.objective is None or encoded.objective.frozen_params(subject.encoder) is not None:
        return None
    model, rows = encoded.objective.model(subject.encoder), []
    with progress(f"{subject.label}, loss on {material.name}", encoded.tokens) as bar:
        for batch in encoded.batches(subject.encoder, with_objective=True):
            term = next(iter(encoded.objective.weights(batch)))
            sums, weights = row_losses(encoded.objective, model, term, subject.params, put(batch))
            # Rows that only fill up a batch do not count.
            is_used_B = (batch["example_ids_BN"] >= 0).any(axis=1)
            rows.append(np.stack([np.asarray(sums, np.float64), np.asarray(weights, np.float64)], axis=-1)[is_used_B])
            bar.update(int((batch["examples_BT"] > 0).sum()))
    return np.concatenate(rows)


def _as_dicts(curves: Mapping[str, Curve]) -> dict[str, Any]:
    return {group: {name: line.tolist() for name, line in curve._asdict().items()} for group, curve in curves.items()}


def _chart_of(curves: Mapping[str, Curve], steps: Mapping[str, Sequence[int]], y: str) -> drawing.Chart:
    """Return a chart of curves with their intervals; steps are given by curve name."""
    lines = {name: (steps[name], curve.mean) for name, curve in curves.items()}
    return drawing.curves(lines, "step", y, {name: curve[1:] for name, curve in curves.items()}, scale="steps")


def _loss_figure(material: str, curves: dict[str, Curve], groups: Sequence[Seeds]) -> Figure:
    steps = {group.name: group.steps for group in groups}
    ends = "; ".join(
        f"{name}: {curve.mean[0]:.3f} at step {steps[name][0]:,}, {curve.mean[-1]:.3f} "
        f"[{curve.low[-1]:.3f}, {curve.high[-1]:.3f}] at step {steps[name][-1]:,}"
        for name, curve in curves.items()
    )
    chart = _chart_of(curves, steps, "loss (nats)")
    return drawing.figure("training/loss", chart, slug_of(material), material=material, ends=ends)


def _part_figures(
    part: str, names: Mapping[Name, Mapping[str, np.ndarray]], groups: Sequence[Seeds]
) -> Iterator[Figure]:
    """Yield a part's figures: related scalars together, and one figure per number that has layers."""
    steps_of = {group.name: group.steps for group in groups}
    layers_of = {group.name: group.subjects[0][0].encoder.layers for group in groups}
    places: dict[Name, dict[tuple[str, str], np.ndarray]] = {}
    for name, of_groups in names.items():
        for group, values in of_groups.items():
            if values.ndim == 2:
                places.setdefault(name[:-1], {})[name[-1] if name else "", group] = values
            else:
                # [seeds, steps, L, H] is averaged over heads.
                by_layer = values.mean(axis=-1) if values.ndim == 4 else values
                # L + 1 entries include the embeddings, as layer 0.
                first = 0 if by_layer.shape[-1] > layers_of[group] else 1
                for layer in range(by_layer.shape[-1]):
                    places.setdefault((*name, group), {})[f"layer {first + layer}", group] = by_layer[..., layer]
    for place, members in places.items():
        # A curve that is NaN at every step draws nothing.
        keys = [key for key, values in members.items() if np.isfinite(values).all(axis=0).any()]
        for start in range(0, len(keys), MOST_CURVES):
            chosen = keys[start : start + MOST_CURVES]
            number = f"-{start // MOST_CURVES + 1}" if len(keys) > MOST_CURVES else ""
            y = place[-2] if place and place[-1] in steps_of else (place or (part,))[-1]
            yield _figure(part, place, number, y, {key: members[key] for key in chosen}, steps_of)


def _figure(
    part: str, place: Name, number: str, y: str, members: Mapping[tuple[str, str], np.ndarray], steps_of
) -> Figure:
    several = len({group for _, group in members}) > 1
    titles = {key: ", ".join(filter(None, key)) if several else key[0] or key[1] for key in members}
    curves = {titles[key]: curve_of(values) for key, values in members.items()}
    steps = {titles[key]: steps_of[key[1]] for key in members}
    what = f"{part}: {', '.join(place)}" if place else part
    ends_of = {name: curve.mean[np.isfinite(curve.mean)][[0, -1]] for name, curve in curves.items()}
    # The caption names the curve that changes most: the reader sees where to look.
    moved = max(ends_of, key=lambda name: abs(ends_of[name][1] - ends_of[name][0]))
    bands = f" {caption('training/bands')[0]}" * any(len(values) > 1 for values in members.values())
    about, key = caption("training/part", what=what, bands=bands, moved=moved, ends=ends_of[moved])
    name = f"{part}-{slug_of(*place)}{number}" if place else f"{part}{number}"
    return Figure(name, about, key, _chart_of(curves, steps, y))


def _text(groups: Sequence[Seeds], found) -> str:
    parts = ", ".join(part for part, names in found.items() if names) or "none"
    listed = "; ".join(
        f"{group.name}: {len(group.steps)} checkpoints, from step {group.steps[0]:,} to {group.steps[-1]:,}"
        for group in groups
    )
    text = f"{listed}. Other parts with numbers that change: {parts}."
    if any(len(group.subjects) > 1 for group in groups):
        text += "\n\nIntervals cover the choice of seeds, on these examples, if results scatter normally over seeds."
    return text
