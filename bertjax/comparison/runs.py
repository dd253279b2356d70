"""The runs to compare: a workdir each, or a folder of `--seeds` with several."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bertjax.config import from_dict, to_dict
from bertjax.errors import Untrusted, UserError
from bertjax.training.results.scores import Scores, read_probes, read_scores
from bertjax.training.run.record import read_settings
from bertjax.training.run.workdir import Workdir, is_finished, read_json, read_jsonl


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, as recorded in its workdir.

    Attributes:
      settings: the configuration as plain dicts, with the values that were filled in from the data.
      identity: what a resumed run must share, including fingerprints of its data.
      records: the lines of `metrics.jsonl`.
      summary: `summary.json`, of the newest evaluation or of the end; empty without one.
      probes: metrics of probes of the run, by `probe/metric`.
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
        """Steps of all stages."""
        return sum(stage["steps"] for stage in self.settings["stages"])

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return is_finished(self.summary, self.planned_steps)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One side of a comparison.

    Attributes:
      name: the path without the folders that all entries share.
      path: the path on the command line.
      runs: one run, or one for each seed.
    """

    name: str
    path: str
    runs: tuple[Run, ...]

    @property
    def records(self) -> list[dict]:
        """The lines of `metrics.jsonl` of all runs."""
        return [record for run in self.runs for record in run.records]


def open_entries(paths: Sequence[str]) -> list[Entry]:
    """Read workdirs, and folders with a workdir `seed=N` for each seed. No module that a run names is imported.

    Raises:
      UserError: one is named twice, or one is not a run or has logged nothing.
    """
    roots = [Workdir.at(path).root for path in paths]
    if twice := [path for index, path in enumerate(paths) if roots[index] in roots[:index]]:
        raise UserError(f"{twice[0]} is named twice; name each run once")
    return [Entry(name, str(path), open_runs(path)) for name, path in zip(_names(paths), paths, strict=True)]


def open_runs(path: str) -> tuple[Run, ...]:
    """Read a workdir, or each workdir `seed=N` of a folder; see `open_entries` for the errors."""
    workdir = Workdir.at(path)
    if not workdir.root.is_dir():
        raise UserError(f"{path!r} does not exist; name a workdir, or the folder of a run with --seeds")
    if workdir.config.exists():
        runs = (_read(workdir),)
    else:
        seeds = [folder for folder in workdir.root.glob("seed=*") if Workdir(folder).config.exists()]
        runs = tuple(_read(Workdir(folder)) for folder in sorted(seeds, key=lambda folder: (len(folder.name), folder)))
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
        summary = read_json(workdir.summary, "eval", "baseline", "steps", "seconds", "tokens_per_second")
    settings, identity = read_settings(workdir)
    try:
        settings = to_dict(from_dict(settings))
    except Untrusted:  # the file has every setting that was known when the run started
        pass
    run = Run(settings, identity, read_jsonl(workdir.metrics), summary, probes=read_probes(workdir.root))
    return dataclasses.replace(run, scores=read_scores(workdir.scores)) if run.finished else run


def _names(paths: Sequence[str]) -> list[str]:
    """Return paths without their common folders: `a/x`, `b/x` for `runs/a/x`, `runs/b/x`."""
    parts = [path.rstrip("/").split("/") for path in paths]
    while all(len(path) > 1 for path in parts) and len({path[0] for path in parts}) == 1:
        parts = [path[1:] for path in parts]
    return ["/".join(path) for path in parts]
