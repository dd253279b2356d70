"""Results of several checkpoints as series over training steps, grouped by configuration and seed."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.analysis.part import Result
from bertjax.analysis.subject import Subject
from bertjax.training.results.seeds import interval_of_mean

# Path of a number within the results of a part, such as ("corpus", "shares", "vertical").
Name = tuple[str, ...]

# Numbers that are positions or bounds: their mean over seeds is meaningless.
_NOT_MEASURED = {"layer", "head", "interval"}

# Settings that may differ between seeds of one configuration.
_OF_A_RUN = ("seed", "data", "eval", "runtime")


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
