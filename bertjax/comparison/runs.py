"""Runs to compare, and the settings in which they differ.

A side is a workdir, a folder of `--seeds` with several, or several workdirs under one name.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.config.typed import differences
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError, shorten
from bertjax.training.results.scores import Scores, read_probes, read_scores
from bertjax.training.run.record import changes_beside_seed, read_settings
from bertjax.training.run.workdir import Workdir, is_finished, read_json, read_jsonl, runs_in
from bertjax.training.sweep import BASE as SWEEP

# Identity entries that follow from settings and data, and one that has the name of a setting but holds content.
_NO_CONTENT, _START = ("plans", "skip_rows", "task_order", "questions"), "init_from"

# Setting -> distinct values per entry, over its runs; None if a run lacks the setting.
Rows = dict[str, list[tuple[Any, ...]]]


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, as recorded in its workdir.

    Attributes:
      settings: configuration as plain dicts, including values filled in from the data.
      identity: settings and data fingerprints that a resumed run must share.
      records: lines of `metrics.jsonl`.
      summary: `summary.json`, written by the newest evaluation or at the end; empty if missing.
      probes: probe metrics, by `probe/metric`.
      scores: metrics of the last evaluation by example; empty unless the run is finished.
    """

    settings: dict[str, Any]
    identity: dict[str, Any]
    records: list[dict]
    summary: dict[str, Any]
    scores: dict[str, Scores] = dataclasses.field(default_factory=dict)
    probes: dict[str, Scores] = dataclasses.field(default_factory=dict)

    @property
    def planned_steps(self) -> int:
        """Steps over all stages."""
        return sum(stage["steps"] for stage in self.settings["stages"])

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return is_finished(self.summary, self.planned_steps)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One side of a comparison.

    Attributes:
      name: name before `=` on the command line, or else the path without the folders that all such paths share.
      path: path on the command line; several are joined by commas.
      runs: one run, or one per seed.
    """

    name: str
    path: str
    runs: tuple[Run, ...]

    @property
    def records(self) -> list[dict]:
        """Lines of `metrics.jsonl` from all runs."""
        return [record for run in self.runs for record in run.records]


def open_entries(arguments: Sequence[str]) -> list[Entry]:
    """Read workdirs, and folders with a workdir `seed=N` per seed. Modules named by a run are not imported.

    Args:
      arguments: paths, or `NAME=PATH` for an entry with a chosen name. Several paths under one name are the entry's
        seeds. A path that exists is never split, so folders such as `runs/tiny-seed=1` need no name. The folder of a
        sweep stands for its combinations.

    Raises:
      UserError: a run is named twice, a path is not a run or has logged nothing, or runs under one name differ in more
        than the seed.
    """
    names, paths = zip(*(_split(argument) for each in arguments for argument in _combinations(each)))
    roots = [Workdir.at(path).root for path in paths]
    if twice := [path for index, path in enumerate(paths) if roots[index] in roots[:index]]:
        raise UserError(f"{twice[0]} is named twice; name each run once")
    unnamed = [index for index, name in enumerate(names) if not name]
    short = dict(zip(unnamed, _names([paths[index] for index in unnamed])))
    folders: dict[str, list[str]] = {}
    for index, (name, path) in enumerate(zip(names, paths)):
        if index in short and short[index] in names:
            raise UserError(f"{path} has the name {short[index]} of another run; write NAME={path} with another NAME")
        folders.setdefault(name or short[index], []).append(path)
    return [Entry(name, ", ".join(of_name), _one_arm(name, of_name)) for name, of_name in folders.items()]


def _combinations(path: str) -> list[str]:
    """Return the folders of a sweep that have a run; another path as it is."""
    root = Workdir.at(path).root
    if not (root / SWEEP).exists():
        return [path]
    folders = [root / name for name in storage.names_in(root) if "=" in name]
    if started := [str(folder) for folder in folders if Workdir(folder).config.exists() or runs_in(folder)]:
        return started
    raise UserError(f"{path!r} is the folder of a sweep without a run; start it with the same command again")


def _split(argument: str) -> tuple[str, str]:
    """Split `NAME=PATH` into (name, path); a plain path has an empty name."""
    name, equals, path = argument.partition("=")
    # `runs/a=b` and existing folders with an equals sign are paths, not names.
    if not equals or "/" in name or Workdir.at(argument).root.is_dir():
        return "", argument
    if not name.strip() or not path:
        raise UserError(f"{argument!r} has an empty name or path; write NAME=WORKDIR")
    return name, path


def _one_arm(name: str, paths: Sequence[str]) -> tuple[Run, ...]:
    """Read an entry's runs; runs from several folders must be seeds of one configuration."""
    runs = tuple(run for path in paths for run in open_runs(path))
    if len(paths) == 1:
        return runs
    if changes := [line for run in runs[1:] for line in _changes(runs[0], run)]:
        raise UserError(f"the runs of {name} differ in more than the seed ({shorten(changes)}); give them two names")
    seeds = [run.settings["seed"] for run in runs]
    if twice := [seed for index, seed in enumerate(seeds) if seed in seeds[:index]]:
        raise UserError(f"{name} has two runs of seed {twice[0]}; name one run for each seed")
    return tuple(sorted(runs, key=lambda run: run.settings["seed"]))


def _changes(first: Run, second: Run) -> list[str]:
    """Return where two runs differ, apart from the seed: in what was trained, or in which rows were scored."""
    before, after = (
        {"eval": {part: run.settings["eval"].get(part) for part in ("rows", "seed")}} for run in (first, second)
    )
    return changes_beside_seed(first.identity, second.identity) + differences(before, after)


def open_runs(path: str) -> tuple[Run, ...]:
    """Read a workdir, or each workdir `seed=N` in a folder; see `open_entries` for the errors."""
    workdir = Workdir.at(path)
    if not workdir.root.is_dir():
        raise UserError(f"{path!r} does not exist; name a workdir, the folder of a run with --seeds, or NAME=WORKDIR")
    if workdir.config.exists():
        runs = (_read(workdir),)
    else:
        several = [folder for folder in runs_in(workdir.root) if Workdir(folder).config.exists()]
        if several and several[0].name == "fold=0":
            raise UserError(f"{path!r} holds the runs of folds; name some, such as {several[0]}")
        runs = tuple(_read(Workdir(folder)) for folder in several)
    if not runs and (workdir.root / SWEEP).exists():
        raise UserError(f"{path!r} holds a sweep, whose combinations have names of their own; leave NAME= out")
    if not runs:
        raise UserError(
            f"{path!r} is not a run: it has neither config.json nor folders seed=N with one; name a workdir, or the "
            "folder of a run with --seeds"
        )
    if not any(run.records for run in runs):
        every = runs[0].settings["runtime"]["log_every"]
        raise UserError(f"{path!r} has no line in metrics.jsonl yet; a run writes the first at step {every}")
    return runs


def _read(workdir: Workdir) -> Run:
    summary = {}
    if workdir.summary.exists():
        keys = ("eval", "baseline", "finished", "steps", "seconds", "tokens_per_second")
        summary = read_json(workdir.summary, *keys)
    settings, identity = read_settings(workdir)
    run = Run(settings, identity, read_jsonl(workdir.metrics, "step"), summary, probes=read_probes(workdir.root))
    # Scores of an unfinished run belong to some earlier step.
    return dataclasses.replace(run, scores=read_scores(workdir.scores)) if run.finished else run


def _names(paths: Sequence[str]) -> list[str]:
    """Return paths without their common folders: `a/x`, `b/x` for `runs/a/x`, `runs/b/x`."""
    parts = [path.rstrip("/").split("/") for path in paths]
    # Drop the first folder while all paths share it; the last part always stays.
    while all(len(path) > 1 for path in parts) and len({path[0] for path in parts}) == 1:
        parts = [path[1:] for path in parts]
    return ["/".join(path) for path in parts]


@dataclasses.dataclass(frozen=True)
class Differences:
    """Settings with different values between entries, by dotted name.

    Attributes:
      identity: settings that are part of the run's identity.
      execution: other settings: `eval`, `runtime`, and data paths.
      content: data fingerprints, which may differ under one path.
    """

    identity: Rows
    execution: Rows
    content: Rows


def differences_of(entries: Sequence[Entry]) -> Differences:
    """Compare the configurations of all entries, including defaults."""
    settings = [[leaves(run.settings) for run in entry.runs] for entry in entries]
    content = [[_content_of(run) for run in entry.runs] for entry in entries]
    identifying = {name for entry in entries for run in entry.runs for name in _identifying(run)}
    rows = _differing(settings)
    return Differences(
        {name: values for name, values in rows.items() if name in identifying},
        {name: values for name, values in rows.items() if name not in identifying},
        _differing(content),
    )


def leaves(nested: Any, path: str = "") -> dict[str, Any]:
    """Flatten nested dicts and lists to {`a.0.b`: value}, with the names of overrides.

    A list of plain values is one value. An empty dict or list has no leaf.
    """
    if isinstance(nested, Mapping):
        inner = nested.items()
    # Lists of plain values stay whole, as a user would write them; lists of settings, such as stages, are indexed.
    elif isinstance(nested, list) and not (nested and isinstance(nested[0], str | int | float)):
        inner = enumerate(nested)
    else:
        return {path: nested}
    return {
        name: value
        for key, entry in inner
        for name, value in leaves(entry, f"{path}.{key}" if path else str(key)).items()
    }


def text_of(values: tuple[Any, ...]) -> str:
    """Return an entry's values as text; a dash for None."""
    return ", ".join(
        "-" if value is None else value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
        for value in values
    )


def _content_of(run: Run) -> dict[str, Any]:
    """Return the identity without settings, and without plans, which follow from settings and store."""
    identity = {name: value for name, value in run.identity.items() if name not in _NO_CONTENT}
    # Settings in the identity are compared as settings; only fingerprints remain here.
    stated = _identifying(run)
    return {name: value for name, value in leaves(identity).items() if name not in stated}


def _identifying(run: Run) -> set[str]:
    """Return the names of settings that are part of the identity."""
    return (leaves(run.identity).keys() & leaves(run.settings).keys()) - {_START}


def _differing(entries: Sequence[Sequence[Mapping[str, Any]]]) -> Rows:
    # A dict as an ordered set: settings keep the order of the configuration.
    names = dict.fromkeys(name for runs in entries for settings in runs for name in settings)
    rows = {name: [tuple(_distinct([settings.get(name) for settings in runs])) for runs in entries] for name in names}
    return {name: cells for name, cells in rows.items() if any(cell != cells[0] for cell in cells)}


def _distinct(values: list[Any]) -> list[Any]:
    """Return the distinct values in order; lists cannot be hashed, so no set is used."""
    return [value for index, value in enumerate(values) if value not in values[:index]]
