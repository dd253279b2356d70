"""The runs to compare: a workdir each, or a folder of `--seeds` with several."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bertjax.config import Config
from bertjax.errors import UserError
from bertjax.training.run.record import read_record
from bertjax.training.run.workdir import Workdir, read_json, read_jsonl


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, as recorded in its workdir.

    Attributes:
      config: the configuration, with the values that were filled in from the data.
      identity: what a resumed run must share, including fingerprints of its data.
      records: the lines of `metrics.jsonl`.
      summary: `summary.json`; empty without one.
    """

    config: Config
    identity: dict[str, Any]
    records: list[dict]
    summary: dict[str, Any]

    @property
    def planned_steps(self) -> int:
        """Steps of all stages."""
        return sum(stage.steps for stage in self.config.stages)

    @property
    def finished(self) -> bool:
        """Whether all steps are done. A run that is being extended has the summary of its earlier end."""
        return self.summary.get("steps") == self.planned_steps


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


def open_entries(paths: Sequence[str], trust_code: bool = False) -> list[Entry]:
    """Read workdirs, and folders with a workdir `seed=N` for each seed.

    Args:
      paths: the folders.
      trust_code: whether modules that a run names as `module:Class` are imported.

    Raises:
      UserError: there are fewer than two, one is named twice, or one is not a run or has logged nothing.
    """
    roots = [Workdir.at(path).root for path in paths]
    if len(roots) < 2:
        raise UserError(f"{paths[0] if paths else 'nothing'} is the only run; name two runs or more")
    if twice := [path for index, path in enumerate(paths) if roots[index] in roots[:index]]:
        raise UserError(f"{twice[0]} is named twice; name each run once")
    return [
        Entry(name, str(path), open_runs(path, trust_code)) for name, path in zip(_names(paths), paths, strict=True)
    ]


def open_runs(path: str, trust_code: bool = False) -> tuple[Run, ...]:
    """Read a workdir, or each workdir `seed=N` of a folder; see `open_entries` for the errors."""
    workdir = Workdir.at(path)
    if not workdir.root.is_dir():
        raise UserError(f"{path!r} does not exist; name a workdir, or the folder of a run with --seeds")
    if workdir.config.exists():
        runs = (_read(workdir, trust_code),)
    else:
        seeds = [folder for folder in workdir.root.glob("seed=*") if Workdir(folder).config.exists()]
        runs = tuple(
            _read(Workdir(folder), trust_code)
            for folder in sorted(seeds, key=lambda folder: (len(folder.name), folder))
        )
    if not runs:
        raise UserError(
            f"{path!r} is not a run: it has neither config.json nor folders seed=N with one; name a workdir, or the "
            "folder of a run with --seeds"
        )
    if not any(run.records for run in runs):
        every = runs[0].config.runtime.log_every
        raise UserError(f"{path!r} has no line in metrics.jsonl yet; a run writes the first at step {every}")
    return runs


def _read(workdir: Workdir, trust_code: bool) -> Run:
    summary = {}
    if workdir.summary.exists():
        summary = read_json(workdir.summary, "eval", "baseline", "steps", "seconds", "tokens_per_second")
    record = read_record(workdir, trust_code)
    return Run(record.config, record.identity, read_jsonl(workdir.metrics), summary)


def _names(paths: Sequence[str]) -> list[str]:
    """Return paths without their common folders: `a/x`, `b/x` for `runs/a/x`, `runs/b/x`."""
    parts = [path.rstrip("/").split("/") for path in paths]
    while all(len(path) > 1 for path in parts) and len({path[0] for path in parts}) == 1:
        parts = [path[1:] for path in parts]
    return ["/".join(path) for path in parts]
