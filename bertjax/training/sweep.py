"""Grid sweeps: train every combination of setting values in its own workdir, and rank them.

A setting that changes the held-out task itself, such as `objective.masking.rate`, makes held-out losses incomparable,
so only combinations with the same held-out task are ranked together.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence

from etils import epath
from rich.console import Console

from bertjax.config.config import Config, to_dict
from bertjax.config.typed import differences
from bertjax.runtime import storage
from bertjax.runtime.command_line import command
from bertjax.runtime.errors import RunFailed, UserError, shorten
from bertjax.training.each import Results, Trial
from bertjax.training.results import seeds
from bertjax.training.results.heldout_task import heldout_task
from bertjax.training.results.scores import is_lower_better
from bertjax.training.run.record import read_settings
from bertjax.training.run.tables import Table
from bertjax.training.run.workdir import Workdir, read_json, write_json

# Files of the ranking, and of the configuration that all combinations share.
SUMMARY, BASE = "results.json", "sweep.json"
# Start of another setting behind a plus; `1e+3` is a value.
_SETTING = re.compile(r"[a-z][\w.]*=")
_PAIRS = {"[": "]", "(": ")", "{": "}", "'": "'", '"': '"'}


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of one combination of values.

    Attributes:
      folder: relative to the sweep's folder.
      metric: development set metric to rank by.
      values: one metric value per finished seed.
      baseline: metric if the most frequent class is always predicted; None without classes.
      failures: why runs failed.
      task_changes: differences between its held-out task and the first combination's, such as
        `objective.masking.rate: 0.15 -> 0.4`; empty if there are none.
      settings: {swept setting: value}, as text.
      parameters: trained parameters; None if no seed has finished.
      flops: useful FLOPs of a run, the mean over its seeds; None if no seed has finished.
    """

    folder: str
    metric: str
    values: tuple[float, ...]
    baseline: float | None
    failures: tuple[str, ...]
    task_changes: tuple[str, ...] = ()
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    parameters: int | None = None
    flops: float | None = None

    @property
    def held_out_task(self) -> tuple[str, ...]:
        """Key for comparable results: only results with equal keys are ranked together."""
        # Metrics of different names are different questions too, even with equal settings.
        return (self.metric, *self.task_changes)

    @property
    def mean(self) -> float:
        """Mean over the seeds; nan if none has finished."""
        return math.fsum(self.values) / len(self.values) if self.values else math.nan

    @property
    def rank(self) -> float:
        """Sort key, lower is better; infinity if a seed has failed, since the mean of the others is biased."""
        if self.failures or not math.isfinite(self.mean):
            return math.inf
        return self.mean if is_lower_better(self.metric) else -self.mean


def combinations(sweeps: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return {folder: overrides} for every combination of `a.b=value,value,...`.

    Settings that change together are joined by a plus: `width=128+heads=4,width=256+heads=8`.

    Raises:
      UserError: a setting has no values, is given twice or has no effect on the score, or two folders would have the
        same name.
    """
    choices: list[list[tuple[str, ...]]] = []
    taken: set[str] = set()
    for sweep in sweeps:
        key, _, text = sweep.partition("=")
        parts, alternatives, keys = _split(text), [], []
        for number, part in enumerate(parts):
            stated = _assignments(part)
            names = [assignment.partition("=")[0] for assignment in stated]
            # Another setting than the first one's is a value with an equals sign, such as the folder `seed=1`.
            if not number or (names != keys[0] and (names[0] != key or "=" not in stated[0])):
                stated = _assignments(f"{key}={part}")
                names = [assignment.partition("=")[0] for assignment in stated]
            alternatives.append(tuple(stated))
            keys.append(names)
        if not key or not all(assignment.partition("=")[2] for each in alternatives for assignment in each):
            example = "--sweep=optimizer.learning_rate=2e-5,5e-5"
            raise UserError(f"--sweep={sweep} has an empty name or value; write {example}")
        if "optimizer.ema_decay" in keys[0]:  # results are ranked by the last weights
            raise UserError(
                f"--sweep={sweep} does not change the last weights, by which results are ranked; train one run for "
                "each value, and compare eval_ema in their summary.json"
            )
        if different := [each for each in keys if each != keys[0]]:
            raise UserError(
                f"--sweep={sweep} sets {', '.join(keys[0])}, then {', '.join(different[0])}; name the same settings "
                "each time, as in --sweep=model.width=128+model.heads=2,model.width=256+model.heads=4"
            )
        if twice := [name for index, name in enumerate(keys[0]) if name in taken or name in keys[0][:index]]:
            raise UserError(f"--sweep={sweep} repeats {twice[0]}; list all its values in one --sweep, with commas")
        taken |= {*keys[0]}
        choices.append(alternatives)
    folders: dict[str, tuple[str, ...]] = {}
    for chosen in itertools.product(*choices):
        overrides = tuple(itertools.chain(*chosen))
        # Several processes find a trial by its folder, so the name depends on the values only.
        name = ",".join(overrides)
        folder = re.sub(r"[^\w.=,-]+", "_", name)
        if storage.short_name(folder) != folder:  # such as a sweep over long paths
            folder = f"{storage.short_name(folder, 200)}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
        if folder in folders:
            raise UserError(f"two combinations of --sweep have the folder {folder}; list each value once")
        folders[folder] = overrides
    return folders


def trials_of(sweeps: Sequence[str], seeds: int, load: Callable[[tuple[str, ...]], tuple[Config, str]]) -> list[Trial]:
    """Return the runs of a sweep: every combination, with seeds 0, 1, ... if `seeds` is set.

    Args:
      sweeps: as in `combinations`; without any, the seeds alone.
      seeds: number of seeds; 0 uses only the configured seed.
      load: returns (configuration, reference curve name) for given overrides.
    """
    trials = []
    for folder, chosen in combinations(sweeps).items():
        config, name = load(chosen)
        trials += [] if seeds else [Trial(folder, config, name, chosen)]
        for seed in range(seeds):
            of_seed = dataclasses.replace(config, seed=seed)
            trials.append(Trial(f"{folder}/seed={seed}".lstrip("/"), of_seed, name, chosen))
    return trials


def write(root: epath.Path, trials: Sequence[Trial], runs: Results) -> list[Result]:
    """Return results for all combinations, best first, and write `results.json`.

    Combinations with several seeds get a `seeds.json`. With several held-out tasks, results are grouped by task, and
    each group is sorted.

    Args:
      root: the sweep's folder.
      trials: all runs.
      runs: what they came to.

    Raises:
      RunFailed: no run has a score.
    """
    groups: dict[str, list[Trial]] = {}  # {combination: its runs, one per seed}
    for trial in trials:
        groups.setdefault(trial.folder.partition("/")[0], []).append(trial)
    results, first_task = [], None
    for folder, of_seeds in groups.items():
        finished = [trial.folder for trial in of_seeds if trial.folder in runs.figures]
        figures, config = [runs.figures[run] for run in finished], of_seeds[0].config
        metric = config.qualified(config.task_name, config.task.objective.best_metric) if finished else ""
        scores = [numbers["eval"].get(metric) for numbers in figures]
        values = tuple(score for score in scores if score is not None and math.isfinite(score))
        # `majority_accuracy` is the baseline of both `accuracy` and `token_accuracy`.
        task_name, slash, own = metric.rpartition("/")
        majority = f"{task_name}{slash}majority_{own.removeprefix('token_')}"
        baseline = figures[0]["baseline"].get(majority) if figures else None
        failed, changes = tuple(runs.failures[each.folder] for each in of_seeds if each.folder in runs.failures), ()
        # A metric that is not finite, null in summary.json, is a failure: the mean of the other seeds must not win.
        failed += (f"its {metric} is not finite",) * (len(figures) - len(values))
        if finished:
            task = heldout_task(*read_settings(Workdir(root / finished[0])), metric)
            first_task = first_task or task
            changes = tuple(first_task.changes(task))
        parameters = figures[0]["parameters"] if figures else None
        flops = math.fsum(each["flops"] for each in figures) / len(figures) if figures else None
        swept = dict(item.split("=", 1) for item in of_seeds[0].swept)
        results.append(Result(folder, metric, values, baseline, failed, changes, swept, parameters, flops))
        if len(of_seeds) > 1 and len(figures) == len(of_seeds):
            write_json(root / folder / seeds.SUMMARY, seeds.over_seeds(figures))
    tasks = list(tasks_of(results))
    last = len(tasks)  # combinations without a finished seed come last
    results.sort(key=lambda each: (tasks.index(each.held_out_task) if each.values else last, each.rank))
    write_json(root / SUMMARY, [dataclasses.asdict(result) | {"mean": result.mean} for result in results])
    if not tasks:
        raise RunFailed(f"no run in {root} has a score; the first failure: {results[0].failures[0]}")
    return results


def tasks_of(results: Sequence[Result]) -> dict[tuple[str, ...], list[Result]]:
    """Return {held-out task: results}, without combinations that have no finished seed."""
    by_task: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        if result.values:
            by_task.setdefault(result.held_out_task, []).append(result)
    return by_task


def best_lines(root: epath.Path, results: Sequence[Result]) -> list[str]:
    """Return a line with the best combination for each held-out task that several combinations share.

    Args:
      root: the sweep's folder.
      results: as `write` returns them.
    """
    tasks = tasks_of(results)
    if len(tasks) < 2:
        return [f"best      {root / of_task[0].folder}" for of_task in tasks.values()]
    lines = [
        f"best      {root / of_task[0].folder}  (of {len(of_task)} that are measured by {'; '.join(task)})"
        for task, of_task in tasks.items()
        if len(of_task) > 1
    ]
    return [*lines, f"not ranked together: the combinations have {len(tasks)} different held-out tasks"]


def lines_of(root: epath.Path, results: Sequence[Result]) -> list[str]:
    """Print the results as a table, and return lines with the best combinations, files and the next command."""
    print_results(results)
    return [
        *best_lines(root, results),
        f"figures   {root / SUMMARY}",
        f"next      {command('compare', str(root))}",
    ]


def print_results(results: Sequence[Result]) -> None:
    """Print a table with one line per combination, best first, and one section per held-out task."""
    metric, tasks = next((result.metric for result in results if result.metric), ""), tasks_of(results)
    table = Table(title=f"development set: {metric}")
    for column in ("", "mean", "deviation", "baseline", "runs", *["held-out task"] * (len(tasks) > 1)):
        table.add_column(column, justify="right" if column else "left", overflow="fold")
    for index, result in enumerate(results):
        if index and result.held_out_task != results[index - 1].held_out_task:
            table.add_section()
        mean = f"{result.mean:.4f}" if result.values else "-"
        spread = f"{seeds.deviation(result.values):.4f}" if len(result.values) > 1 else "-"
        baseline = "-" if result.baseline is None else f"{result.baseline:.4f}"
        runs = str(len(result.values)) + (f", {len(result.failures)} failed" if result.failures else "")
        task = ["; ".join(result.held_out_task)] * (len(tasks) > 1)
        table.add_row(result.folder, mean, spread, baseline, runs, *task)
    Console().print(table)


def _assignments(text: str) -> list[str]:
    """Split `a=1+b=2` into the assignments of settings that change together."""
    first, *others = _split(text, "+")
    assignments = [first]
    for part in others:
        if _SETTING.match(part):
            assignments.append(part)
        else:
            assignments[-1] += f"+{part}"
    return assignments


def _split(text: str, separator: str = ",") -> list[str]:
    """Split at commas outside brackets and quotes, so that a value may be a list."""
    parts, expected = [""], []
    for character in text:
        if expected and character == expected[-1]:
            # A quote closes itself, so compare with the expected character before looking for an opening one.
            expected.pop()
        elif character in _PAIRS and not (expected and expected[-1] in "'\""):  # brackets in quotes are text
            expected.append(_PAIRS[character])
        if character == separator and not expected:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def check_base(root: epath.Path, base: Config) -> None:
    """Write the configuration to `sweep.json`, or compare it with the one from an earlier start.

    Raises:
      UserError: the folder holds a sweep with another configuration.
    """
    path = root / BASE
    # Several commands may extend one sweep, but only with the same base: otherwise results are not comparable.
    # The round trip through JSON turns tuples into lists, as they are in the file.
    settings = {name: value for name, value in json.loads(json.dumps(to_dict(base))).items() if name != "runtime"}
    if not storage.exists(path):
        root.mkdir(parents=True, exist_ok=True)
        write_json(path, {"base": settings})
    elif changed := differences(read_json(path, "base")["base"], settings):
        raise UserError(f"{root} has a sweep with other settings: {shorten(changed)}; use another --workdir")
