"""Page sections about a training run: curves, guesses, data rows, speed, settings, environment."""

import argparse
import functools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.analysis import class_sections, drawing, smaller_models
from bertjax.analysis.drawing import Figure
from bertjax.analysis.page import Section, Table, Token, TokenRow, caption, table
from bertjax.analysis.subject import Subject
from bertjax.comparison.numbers import last_evaluation
from bertjax.comparison.runs import Run, leaves, open_runs, text_of
from bertjax.config import config_file
from bertjax.config.config import Config, plain
from bertjax.config.settings import settings_of
from bertjax.data import tokenizer
from bertjax.data.inspect.report import originals_of
from bertjax.data.labeled.base import LabeledFormat
from bertjax.data.pipeline import Feed
from bertjax.data.preparation.spec import corpora, find
from bertjax.data.store import TokenStore
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError
from bertjax.training.feeds import Feeds
from bertjax.training.resolve import labeled_files
from bertjax.training.results import curves, seeds
from bertjax.training.results.report import plan_line
from bertjax.training.run.record import RunRecord, read_record, with_split
from bertjax.training.run.run_status import RunStatus, read_status
from bertjax.training.run.workdir import Workdir, read_jsonl, runs_in

# Maximum number of evaluations in a table of guesses, the first and the last one included.
_MOST_EVALUATIONS = 7
_SHOWN_GUESSES = 3
# Maximum number of tasks whose rows are shown.
_MOST_TASKS = 4
_COLUMNS = 2
_DRAWN_BESIDE = ("_loss", "accuracy", "f1", "matthews", "spearman")
_OPTIMIZER = ("learning_rate", "gradient_norm")
_ACCOUNTS = {
    "step": "steps",
    "compile": "compilation",
    "data_wait": "waiting for data",
    "evaluation": "evaluation",
    "checkpoint": "checkpoints",
}


def sections_of(path: str, trust_code: bool = False) -> list[Section]:
    """Return the sections about a run.

    Args:
      path: its workdir, or the folder of the folds of a file.
      trust_code: whether to import modules that the run names as `module:Class`.

    Raises:
      UserError: the folder is not a run, one of its files is damaged, or the run has logged nothing yet.
    """
    workdir = Workdir.at(path)
    if several := workdir.root.is_dir() and runs_in(workdir.root):
        if several[0].name == "fold=0":
            return class_sections.of_folds(path, trust_code)
        raise UserError(f"{str(path)!r} holds several runs; name one of them, such as {several[0]}")
    [run] = open_runs(str(path))
    record = read_record(workdir, trust_code)
    status, starts = read_status(workdir.root), read_jsonl(workdir.starts)
    return [
        _summary(run, status),
        _curves(run, workdir, record.config, _config_name(starts)),
        *class_sections.sections_of(workdir, record),
        *smaller_models.sections_of(workdir),
        _guesses(read_jsonl(workdir.samples)),
        _rows(workdir, record),
        _speed(run, status),
        _settings(record.config, record.identity),
        _environment(starts),
    ]


def sections_before(subjects: Sequence[Subject], trust_code: bool = False) -> list[Section]:
    """Return the sections about a run if all models are its checkpoints, else none."""
    folders = {str(each.saved.folder) for each in subjects if each.saved and not each.saved.is_export}
    if len(folders) != 1:
        return []
    try:
        return sections_of(*folders, trust_code)
    except UserError as error:
        return [Section("run", "The run", skipped=str(error))]


def _config_name(starts: Sequence[dict]) -> str:
    """Return the name of the reference curve, taken from the last start's command; empty without one."""
    command = shlex.split(str(starts[-1].get("command", ""))) if starts else []
    # Only --config matters here; `parse_known_args` skips the other flags of the command.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", default="")
    args, rest = parser.parse_known_args(command)
    overrides = [flag.removeprefix("--config.") for flag in rest if flag.startswith("--config.")]
    return config_file.reference_name(args.config, overrides) if args.config else ""


def _summary(run: Run, status: RunStatus) -> Section:
    metrics, baselines = last_evaluation(run)[1], run.summary.get("baseline", {})
    rows = [(name, _number(value)) for name, value in metrics.items()]
    rows += [(f"baseline: {name}", _number(value)) for name, value in baselines.items()]
    steps = f"{status.step:,}" + (f" of {status.steps:,}" if status.steps else "")
    newest = run.records[-1]
    text = f"The run is {status.state} at step {steps}."
    if "tokens" in newest:
        trunk = newest.get("trunk_tokens", 0.0)  # read by the run that this one branches from, in time of its own
        read = f"{newest['tokens'] - trunk:,.0f} tokens in {newest['seconds'] / 60:,.1f} minutes of training"
        text += f" It has read {read}{f', after {trunk:,.0f} of its trunk' if trunk else ''}."
    paragraphs = [text, *(f"Warning: {warning}." for warning in status.warnings)]
    if not rows:
        return Section("run", "The run", (*paragraphs, "It has not been evaluated yet."))
    about, of_averages = caption("run/run")
    if any(name.startswith("ema/") for name in metrics):
        about += f" {of_averages}"
    return Section("run", "The run", tuple(paragraphs), (Table(about, ("metric", "value"), tuple(rows)),))


def _curves(run: Run, workdir: Workdir, config: Config, config_name: str) -> Section:
    best = config.qualified(config.task_name, config.task.objective.best_metric)
    first = [best] if best in curves.metrics_in(run.records) else []
    panels = list(dict.fromkeys([*first, *curves.panels_of(run.records)]))[:_COLUMNS]
    reference, better = "", ""
    if known := curves.reference_of(config_name):
        reference = f"The gray line is the mean of {known['seeds']} seeds of {config_name}, the band their range."
    if config.runtime.keep_best and (found := seeds.better_checkpoint(workdir, config, run.summary.get("eval", {}))):
        better = f"A better checkpoint: {found}."
    chosen = f"Checkpoints are chosen by {best}." if config.runtime.keep_best else ""
    values = {"reference": reference, "chosen": chosen, "better": better}
    drawings = [_drawing("run-curves", run, panels, config_name, **values)]
    others = [name for name in curves.metrics_in(run.records) if name not in panels and name.endswith(_DRAWN_BESIDE)]
    for first in range(0, len(others), _COLUMNS):
        drawings.append(_drawing("run-curves-more", run, others[first : first + _COLUMNS], number=first + 1))
    if optimizer := [name for name in _OPTIMIZER if curves.points_of(run.records, "step", f"{curves.TRAIN}{name}")]:
        drawings.append(_drawing("run-optimizer", run, optimizer))
    return Section("curves", "Curves", blocks=tuple(drawings))


def _drawing(name: str, run: Run, panels: Sequence[str], config_name: str = "", **values: Any) -> Figure:
    draw = functools.partial(curves.figure_of, run.records, panels, config_name, width=3.6)
    ends = "".join(f"{ends}. " for panel in panels if (ends := _in_words(run, panel)))
    return drawing.figure(f"run/{name}", drawing.Chart("Curves against the step.", draw), ends=ends, **values)


def _in_words(run: Run, metric: str) -> str:
    """Return the start and the end of a curve as text."""
    # Held-out numbers are preferred to training ones.
    for prefix in (curves.HELDOUT, curves.TRAIN):
        if points := curves.points_of(run.records, "step", f"{prefix}{metric}"):
            (first, start), (last, end) = points[0], points[-1]
            return f"{prefix}{metric}: {_number(start)} at step {first:,}, {_number(end)} at step {last:,}"
    return ""


def _guesses(records: Sequence[dict]) -> Section:
    title = "Guesses over time"
    evaluations = {record["step"]: record.get("samples", []) for record in records}
    if not any(evaluations.values()):
        reason = "eval.samples is 0, the objective has none, or no evaluation is done yet"
        return Section("guesses", title, skipped=f"samples.jsonl has no sentence: {reason}.")
    at: dict[str, dict[int, list]] = {}
    for step, samples in evaluations.items():
        for sample in samples:
            at.setdefault(sample["text"], {})[step] = sample["guesses"]
    tables = tuple(_guess_table(sample, at[sample["text"]]) for sample in evaluations[max(evaluations)])
    return Section("guesses", title, caption("run/guesses", shown=_SHOWN_GUESSES)[:1], tables)


def _guess_table(sample: dict, at: dict[int, list]) -> Table:
    # Evenly spread, both ends included.
    spread = np.linspace(0, len(at) - 1, min(len(at), _MOST_EVALUATIONS))
    steps = [sorted(at)[index] for index in sorted({round(index) for index in spread})]
    rows, marked = [], set()
    for index, answer in enumerate(sample["answers"]):
        row = [answer]
        for column, step in enumerate(steps, 1):
            guesses = at[step][index] if index < len(at[step]) else []
            row.append(" · ".join(guesses[:_SHOWN_GUESSES]))
            if guesses and guesses[0] == answer:
                marked.add((index, column))
        rows.append(tuple(row))
    headings = ("token", *(f"step {step:,}" for step in steps))
    return Table(sample["text"], headings, tuple(rows), frozenset(marked))


def _speed(run: Run, status: RunStatus) -> Section:
    points = np.array(curves.points_of(run.records, "step", "tokens", "seconds"), float).reshape(-1, 3)
    blocks: list[Figure | Table] = []
    if len(points) > 1:
        steps, tokens, seconds = points.T
        # Clamped: two records within the same clock tick must not divide by zero.
        rates = np.diff(tokens) / np.maximum(np.diff(seconds), 1e-9)
        chart = drawing.curves({"tokens/s": (steps[1:], rates)}, "step", "tokens/s", markers=len(rates) == 1)
        values = {"low": rates.min(), "high": rates.max(), "median": np.median(rates)}
        blocks.append(drawing.figure("run/run-throughput", chart, **values))
    accounts = run.summary.get("accounts", {})
    if wall := accounts.get("wall"):
        blocks.append(_accounts_table(accounts, wall))
    paragraph = "Goodput is not known before the first checkpoint."
    if status.goodput is not None:
        what = f"the share of the wall time of all starts ({status.starts}) that went into steps that were kept"
        paragraph = f"Goodput is {status.goodput:.1%}: {what}."
    return Section("speed", "Throughput and goodput", (paragraph,), tuple(blocks))


def _accounts_table(accounts: dict[str, float], wall: float) -> Table:
    spent = {title: accounts[kind] for kind, title in _ACCOUNTS.items() if kind in accounts}
    # The remainder: accounts cover finished work only, and a killed run loses steps.
    spent["start-up, and steps that were lost"] = max(wall - sum(spent.values()), 0.0)
    rows = [(title, f"{seconds:,.1f}", f"{seconds / wall:.1%}") for title, seconds in spent.items()]
    rows.append(("wall time", f"{wall:,.1f}", "100%"))
    for name in ("mfu", "executed_mfu"):
        if name in accounts:
            rows.append((f"{name.replace('_', ' ')} of the steps", "", f"{accounts[name]:.1%}"))
    return table("run/accounts", ("", "seconds", "share"), rows)


def _settings(config: Config, identity: Mapping[str, Any]) -> Section:
    changes = [setting for setting in settings_of(config) if setting.value != setting.default]
    compared = [f"{name}." for name in leaves(identity)]
    rows: dict[str, list] = {"run/compared": [], "run/free": []}
    for name, *values, _ in changes:
        # The one compared setting of `runtime`, `skip_rows`, has its own entry in the identity (`Config.identity`).
        is_compared = any(leaf.startswith(f"{name.removeprefix('runtime.')}.") for leaf in compared)
        cells = (text_of((plain(value),)) for value in values)
        rows["run/compared" if is_compared else "run/free"].append((name, *cells))
    blocks = [table(name, ("setting", "value", "default"), of_table) for name, of_table in rows.items()]
    paragraph = f"{len(changes)} settings differ from their defaults. The names are those of --config.NAME=value."
    return Section("settings", "Settings that differ from the defaults", (paragraph,), tuple(blocks))


def _environment(starts: Sequence[dict]) -> Section:
    title = "Environment"
    if not starts:
        return Section("environment", title, skipped="starts.jsonl is missing.")
    last = starts[-1]
    devices = last.get("devices", [])
    kinds = ", ".join(f"{devices.count(kind)} x {kind}" for kind in dict.fromkeys(devices))
    rows = [
        ("starts", f"{len(starts):,}"),
        ("last start", str(last.get("time", ""))),
        ("command", str(last.get("command", ""))),
        ("devices", f"{kinds}; processes: {last.get('processes', 1)}"),
        ("Python", str(last.get("python", ""))),
        *((name, str(version)) for name, version in last.get("versions", {}).items()),
    ]
    return Section("environment", title, blocks=(table("run/environment", ("", "value"), rows),))


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}" if abs(value) >= 1e-3 else f"{value:.3g}"


def _rows(workdir: Workdir, record: RunRecord) -> Section:
    """Return the first training rows of a run, or the reason why they cannot be shown. Nothing is prepared."""
    name, title = "rows", "What a row of data looks like"
    try:
        feeds = _feeds(workdir, record)
        shown = list(feeds.train.items())[:_MOST_TASKS]
        label = record.config.qualified
        lines = [f"{plan_line(feed, task, label(task, '').rstrip('/'))}." for (task, _), feed in shown]
        # One task gets two rows, a mixture one row per task.
        count = 2 if len(shown) == 1 else 1
        rows = [row for (task, _), feed in shown for row in _rows_of(feed, feeds.store_of(task).tokenizer, count, task)]
    except (UserError, OSError) as error:
        return Section(name, title, skipped=" ".join(str(error).splitlines()))
    return Section(name, title, (*lines, caption("run/rows")[0]), tuple(rows))


def _feeds(workdir: Workdir, record: RunRecord) -> Feeds:
    """Return the data feeds of a run.

    Raises:
      UserError: its token store is not on this machine, or its labeled files cannot be read.
    """
    config = record.config
    if isinstance(config.task.examples, LabeledFormat):
        config = with_split(workdir, config)
        return Feeds(config, labeled_files(config, tokenizer.load(Path(workdir.tokenizer))))
    # Found by fingerprint: the store must be the one that the run has read, not a newer one.
    path = find(config.data, record.identity["data"]["store_fingerprint"])
    if path is None:
        raise UserError(
            f"data.store={config.data.store} does not hold the token store of the run ({corpora(config.data)}); run "
            "the command where the run was trained"
        )
    return Feeds(config, TokenStore.open(path, cache_dir=config.data.cache_dir))


def _rows_of(feed: Feed, tokenizer: Tokenizer, count: int, task: str) -> list[TokenRow]:
    """Return the first training rows of a feed, token by token, without padding."""
    batch = feed.batch(np.arange(count))
    originals_BT, predicted_BT = originals_of(batch)
    rows = []
    for row in range(count):
        real = np.flatnonzero(batch["examples_BT"][row])
        tokens = tuple(
            Token(
                text=tokenizer.piece(int(batch["tokens_BT"][row, at])),
                segment=int(batch["segments_BT"][row, at]),
                original=tokenizer.piece(int(originals_BT[row, at])) if predicted_BT[row, at] else "",
            )
            for at in real
        )
        examples = np.flatnonzero(batch["example_ids_BN"][row] >= 0)
        labels = [
            f"{name.removesuffix('_labels_BN')}={', '.join(str(batch[name][row, slot]) for slot in examples)}"
            for name in sorted(batch)
            if name.endswith("_labels_BN")
        ]
        about = f"Row {row} of {task}: {len(real)} of {feed.seq_len} positions hold tokens; examples: {len(examples)}; "
        about += f"tokens to predict: {np.count_nonzero(predicted_BT[row])}"
        rows.append(TokenRow(f"{'; '.join([about, *labels])}.", tokens))
    return rows
