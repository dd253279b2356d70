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
import statistics
from collections.abc import Callable, Sequence
from typing import Any

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


def write(root: epath.Path, trials: Sequence[Trial], runs: Results) -> list[dict[str, Any]]:
    """Return results for all combinations, best first, and write `results.json`.

    Combinations with several seeds get a `seeds.json`. With several held-out tasks, results are grouped by task, and
    each group is sorted.

    Args:
      root: the sweep's folder.
      trials: all runs.
      runs: what they came to.

    Returns:
      For each combination: `folder`; `metric`, the development set metric to rank by; `values`, one per finished seed,
      and their `mean`, nan without one; `baseline`, if the most frequent class is always predicted, None without
      classes; `failures`, why runs failed; `task_changes`, how its held-out task differs from the first one's, such as
      `objective.masking.rate: 0.15 -> 0.4`; `settings`, {swept setting: value} as text; `parameters`; `flops` of a run,
      the mean over seeds. Both are None if no seed has finished.

    Raises:
      RunFailed: no run has a score.
    """
    groups: dict[str, list[Trial]] = {}  # {combination: its runs, one per seed}
    for trial in trials:
        groups.setdefault(trial.folder.partition("/")[0], []).append(trial)
    results, first_task = [], None
    for folder, of_seeds in groups.items():
        figures = {trial.folder: runs.figures[trial.folder] for trial in of_seeds if trial.folder in runs.figures}
        failures = [runs.failures[trial.folder] for trial in of_seeds if trial.folder in runs.failures]
        result = {"folder": folder, "metric": "", "values": [], "baseline": None, "failures": failures}
        result |= {"task_changes": [], "settings": dict(item.split("=", 1) for item in of_seeds[0].swept)}
        result |= {"parameters": None, "flops": None, "mean": math.nan}
        results.append(result)
        if not figures:
            continue
        config, (first, one), of_all = of_seeds[0].config, next(iter(figures.items())), list(figures.values())
        metric = config.qualified(config.task_name, config.task.objective.best_metric)
        scores = [each["eval"].get(metric) for each in of_all]
        values = [score for score in scores if score is not None and math.isfinite(score)]
        # A metric that is not finite, null in summary.json, is a failure: the mean of the other seeds must not win.
        failures += [f"its {metric} is not finite"] * (len(scores) - len(values))
        task = heldout_task(*read_settings(Workdir(root / first)), metric)
        first_task = first_task or task
        # `majority_accuracy` is the baseline of both `accuracy` and `token_accuracy`.
        task_name, slash, own = metric.rpartition("/")
        baseline = one["baseline"].get(f"{task_name}{slash}majority_{own.removeprefix('token_')}")
        result |= {"metric": metric, "values": values, "baseline": baseline, "parameters": one["parameters"]}
        result |= {"task_changes": first_task.changes(task), "mean": statistics.fmean(values) if values else math.nan}
        result["flops"] = statistics.fmean(each["flops"] for each in of_all)
        if len(of_seeds) > 1 and len(of_all) == len(of_seeds):
            write_json(root / folder / seeds.SUMMARY, seeds.over_seeds(of_all))
    tasks = [*tasks_of(results)]
    last = len(tasks)  # combinations without a finished seed come last
    results.sort(key=lambda each: (tasks.index(_task_of(each)) if each["values"] else last, _rank(each)))
    write_json(root / SUMMARY, results)
    if not tasks:
        raise RunFailed(f"no run in {root} has a score; the first failure: {results[0]['failures'][0]}")
    return results


def _task_of(result: dict[str, Any]) -> tuple[str, ...]:
    """Return a key: only results with equal keys are comparable, and are ranked together."""
    # Metrics of different names are different questions too, even with equal settings.
    return (result["metric"], *result["task_changes"])


def _rank(result: dict[str, Any]) -> float:
    """Return a sort key, lower is better; infinity if a seed has failed, since the mean of the others is biased."""
    if result["failures"] or not math.isfinite(result["mean"]):
        return math.inf
    return result["mean"] if is_lower_better(result["metric"]) else -result["mean"]


def tasks_of(results: Sequence[dict[str, Any]]) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Return {held-out task: results}, without combinations that have no finished seed."""
    by_task: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for result in results:
        if result["values"]:
            by_task.setdefault(_task_of(result), []).append(result)
    return by_task


def lines_of(root: epath.Path, results: Sequence[dict[str, Any]]) -> list[str]:
    """Print the results as a table, and return lines with the best combinations, files and the next command.

    There is one section per held-out task, and a best combination of each that several share.

    Args:
      root: the sweep's folder.
      results: as `write` returns them.
    """
    metric, tasks = next((each["metric"] for each in results if each["metric"]), ""), tasks_of(results)
    has_several = len(tasks) > 1
    table = Table(title=f"development set: {metric}")
    for column in ("", "mean", "deviation", "baseline", "runs", *["held-out task"] * has_several):
        table.add_column(column, justify="right" if column else "left", overflow="fold")
    for _, of_task in itertools.groupby(results, _task_of):
        table.add_section()
        for each in of_task:
            spread = seeds.deviation(each["values"]) if each["values"] else None
            numbers = (each["mean"] if each["values"] else None, spread, each["baseline"])
            runs = str(len(each["values"])) + (f", {len(each['failures'])} failed" if each["failures"] else "")
            cells = ["-" if number is None else f"{number:.4f}" for number in numbers]
            table.add_row(each["folder"], *cells, runs, *["; ".join(_task_of(each))] * has_several)
    Console().print(table)
    lines = []
    for task, of_task in tasks.items():
        measured = f"  (of {len(of_task)} that are measured by {'; '.join(task)})" * has_several
        if not has_several or len(of_task) > 1:
            lines.append(f"best      {root / of_task[0]['folder']}{measured}")
    if has_several:
        lines.append(f"not ranked together: the combinations have {len(tasks)} different held-out tasks")
    return [*lines, f"figures   {root / SUMMARY}", f"next      {command('compare', str(root))}"]


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
