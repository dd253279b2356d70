"""Open the data of a run, and resolve settings that depend on it, or on the speed of this machine.

A learning rate schedule needs a number of steps before the first one, and a resumed run must keep that number. So the
first start of a run with `stages.0.minutes` compiles the step of the recipe, times a few real steps, and replaces the
recipe's number of steps. The run then compiles again, because the schedule is a part of the compiled step. Later starts
take the number from the record.
"""

import dataclasses
import functools
import math
import os
import sys
import time
from typing import Any, cast

import jax

from bertjax.config.config import Config
from bertjax.config.opening import SavedModel
from bertjax.data import remote, tokenizer
from bertjax.data.config import DataConfig
from bertjax.data.labeled import labels
from bertjax.data.labeled.base import LabeledFormat
from bertjax.data.labeled.source import LabeledSource, LabeledSources
from bertjax.data.pipeline import LocalBatches, iterate
from bertjax.data.preparation.prepare import open_or_prepare
from bertjax.data.preparation.spec import corpora, find, path_of, spec_of
from bertjax.data.store import TokenStore
from bertjax.data.tokenizer import Tokenizer
from bertjax.models.streams import Streams
from bertjax.objectives.base import Objective
from bertjax.objectives.finetuning.embeddings import EmbeddingRegression
from bertjax.objectives.finetuning.labels import Classification, Regression, Tagging
from bertjax.objectives.pretraining.causal import CausalLM
from bertjax.objectives.wrapper import rewrapped, unwrapped
from bertjax.runtime.errors import UserError, say
from bertjax.runtime.storage import is_remote
from bertjax.training import stage_flops
from bertjax.training.config import Stage
from bertjax.training.feeds import Feeds
from bertjax.training.parallel import processes
from bertjax.training.parallel.sharding import batch_shards, put_batches
from bertjax.training.run.record import RunRecord
from bertjax.training.setup import (
    Setup,
    compile_chunk,
    init_frozen,
    init_state,
    make_setup,
    make_timetable,
    resolve_encoder,
)
from bertjax.training.stages import warmup_steps
from bertjax.training.state import State

# Time steps for this many seconds, within these limits on their number.
_SECONDS, _FEWEST, _MOST = 5.0, 2, 50
# A backward pass costs about two forward passes (Kaplan et al., 2020, arXiv 2001.08361, section 2.1), so a row costs a
# third of its training in an evaluation, which has the forward pass alone.
_EVALUATION_SHARE = 1 / 3
# Schedule settings that count steps; they keep their share of the run, as the warm-up does.
_SCHEDULE_STEPS = ("decay_steps", "end_step")
# A run that is shorter than an interval of its recipe has at most this many evaluations and checkpoints before its end.
_MOST_BETWEEN = 9
# So many labels that no two records share are ids or texts.
_FEWEST_NAMES = 10


def open_feeds(config: Config, before: RunRecord | None = None) -> Feeds:
    """Open the data of a run in every process, and resolve its configuration.

    With labeled examples, class names come from the files. Epochs become steps, examples become rows per batch, and a
    warm-up in shares or tokens becomes steps. Evaluation intervals and task weights are filled in if they are unset.

    Args:
      before: record of the run if it resumes.

    Returns:
      The feeds; their `config` has no open settings.

    Raises:
      UserError: the data cannot be read, or does not fit the configuration.
    """
    if isinstance(config.task.examples, LabeledFormat):
        return processes.together(labeled_feeds, config, purpose="labeled-files")
    feeds = Feeds(config, open_store(config.data, before))
    if feeds.store.origin:  # a remote store: process 0 makes and uploads the plans, the others fetch them
        processes.on_writer(feeds.plan, "plan")
    return processes.together(resolve, feeds, purpose="resolve")


def open_store(data: DataConfig, before: RunRecord | None) -> TokenStore:
    """Open the token store of a run in every process, or prepare it.

    A run that resumes with the same data settings opens its own store and does not read the corpus. Otherwise process 0
    reads the corpus to find the store. If there is none, each process prepares the corpus; a remote store is prepared
    by process 0 and fetched by the others.

    Raises:
      UserError: both the store and the corpus are missing, or one of them cannot be read.
    """
    if before is not None and _content(before.config.data) != _content(data):
        before = None
    if store := _store_of(data, before):
        return store
    spec = processes.from_writer(lambda: _spec(data, before), "corpus")

    @functools.cache  # process 0 may run it twice: alone for a remote store, then together with the others
    def opened() -> TokenStore:
        if not processes.is_writer() and not remote.exists(path_of(data, spec)) and spec_of(data) != spec:
            raise UserError(f"{corpora(data)} here differs from what process 0 sees; use the same corpus for all")
        return open_or_prepare(data, spec)

    if is_remote(data.store):
        processes.on_writer(opened, "prepare")
    return processes.together(opened, purpose="store")


def _store_of(data: DataConfig, before: RunRecord | None) -> TokenStore | None:
    """Return the store of a run with the same data; None if there is none, or any process cannot find its store."""
    if before is None:
        return None
    fingerprint = before.identity["data"]["store_fingerprint"]

    def found() -> str:
        return os.fspath(find(data, fingerprint) or "")

    # A remote store has one path for all processes; each machine searches its own disk for a local one.
    agree = processes.from_writer if is_remote(data.store) else processes.together
    path = agree(found, purpose="find-store")
    # All processes take the same branch: otherwise those that prepare would wait for the others.
    if not all(processes.gather(bool(path), "has-store")):
        return None
    print(f"the token store of the run is {path}; {corpora(data)} is not read", flush=True)
    return processes.together(lambda: TokenStore.open(path, cache_dir=data.cache_dir), purpose="store")


def _content(data: DataConfig) -> DataConfig:
    """Return data settings without store locations and worker counts; equal results name the same content."""
    return dataclasses.replace(data, store=DataConfig.store, cache_dir=DataConfig.cache_dir, workers=None)


def _spec(data: DataConfig, before: RunRecord | None) -> dict[str, Any]:
    try:
        return spec_of(data)
    except UserError as error:
        if before is None:
            raise
        fingerprint = before.identity["data"]["store_fingerprint"][:12]
        raise type(error)(
            f"{error}; and data.store={data.store} does not hold the token store of the run, which has the fingerprint "
            f"{fingerprint}...: restore one of them"
        ) from error


def labeled_feeds(config: Config, kind: type[Feeds] = Feeds) -> Feeds:
    """Open labeled files, and resolve the configuration; see `open_feeds`.

    Args:
      kind: class of the feeds, which defines the length of an epoch.
    """
    feeds = kind(config, labeled_files(config, tokenizer_of(config)))
    tasks = dict(config.tasks)
    for name, task in config.tasks.items():
        source = feeds.store_of(name)
        objective = unwrapped(task.objective)
        if isinstance(objective, (Regression, EmbeddingRegression)):
            _check_numbers(source, objective)
        if task.has_classes:
            if len(source.classes) == 1 and isinstance(objective, (Classification, Tagging)):
                raise _of_another_column(source, f"one label only, {source.classes[0]!r}, so there is nothing to learn")
            repeats = source.class_totals, source.format.class_counts(source.heldout)
            if len(source.classes) >= _FEWEST_NAMES and all(max(counts.values(), default=1) == 1 for counts in repeats):
                raise _of_another_column(source, f"another label in each record, such as {source.classes[0]!r}")
            task = dataclasses.replace(
                task, objective=rewrapped(task.objective, functools.partial(_with_classes, source))
            )
        tasks[name] = dataclasses.replace(task, examples=source.format)
    return resolve(dataclasses.replace(feeds, config=dataclasses.replace(config, tasks=tasks)))


def _of_another_column(source: LabeledSource, what: str) -> UserError:
    remedy = "correct the file, or the setting of examples that names the column"
    return UserError(f"{source.format.train} has {what}; {remedy}")


def _check_numbers(source: LabeledSource, objective: Regression | EmbeddingRegression) -> None:
    """Raise UserError if labels are numbers that the objective cannot reach; warn if they are far from its scale."""
    file, column = source.format.train, getattr(source.format, "label", "")
    numbers = sorted(labels.number_of(record[column]) for record in source.labeled if column in record)
    if not numbers or any(map(math.isnan, numbers)):  # encoding the records names the first that is not a number
        return
    (low, high), largest = objective.reach, max(-numbers[0], numbers[-1])
    if len(numbers) > 1 and numbers[0] == numbers[-1]:
        raise _of_another_column(source, f"one label only, {numbers[0]:g}, so there is nothing to learn")
    if numbers[0] == float(labels.IGNORED) and min(set(numbers) - {numbers[0]}, default=-1.0) >= 0:
        raise UserError(f"{file} has the label {labels.IGNORED}, which stands for none; leave these records out")
    current, remedy = "objective.activation=sigmoid", "objective.activation=identity"
    if isinstance(objective, EmbeddingRegression):
        current, remedy = f"objective.full_score={objective.full_score:g}", f"objective.full_score={largest:g}"
    if numbers[0] < low or numbers[-1] > high:
        beyond = f"labels from {numbers[0]:g} to {numbers[-1]:g}, and {current} reaches {low:g} to {high:g}"
        raise UserError(f"{file} has {beyond}; set {remedy}, or divide the labels")
    if isinstance(objective, EmbeddingRegression) and 2 * largest < high:
        remedy = f"if no label can be higher, set {remedy}"
        say(f"warning: {file}: the highest label is {largest:g}, and {current}; {remedy}", file=sys.stderr)


def _with_classes(source: LabeledSource, objective: Objective) -> Objective:
    """Return an objective with the classes of a training file."""
    objective = dataclasses.replace(cast(Any, objective), classes=source.classes)
    # Class weights follow from the class counts of the training file.
    if isinstance(objective, Classification):
        return objective.weighted(source.class_totals)
    return objective


def labeled_files(config: Config, tokenizer: Tokenizer) -> LabeledSource | LabeledSources:
    """Return the labeled files of all tasks; with one task, its files alone.

    Class names that the configuration lacks come from the files.

    Args:
      tokenizer: tokenizer of the model.
    """
    sources = {
        name: LabeledSource(task.examples, tokenizer, task.has_classes, task.objective.classes)
        for name, task in config.tasks.items()
    }
    return LabeledSources(sources, tokenizer) if len(sources) > 1 else sources[config.task_name]


def tokenizer_of(config: Config) -> Tokenizer:
    """Return the tokenizer of a run on labeled files: that of `data.tokenizer.model` or `init_from`.

    Raises:
      UserError: neither is set, or it cannot be opened.
    """
    settings = config.data.tokenizer
    if settings.model:
        return tokenizer.from_model(settings.model, settings.lowercase)
    if not config.init_from:
        raise UserError(
            "labeled examples need the tokenizer of a model; set init_from to the model to fine-tune, or "
            "data.tokenizer.model"
        )
    return SavedModel(config.init_from).tokenizer


def fine_tuning_rate(width: int) -> float:
    """Return the peak learning rate for fine-tuning an encoder of width D: 5e-5 x (768 / D), with two digits.

    5e-5 is the highest rate in BERT base's fine-tuning (Devlin et al., 2019, appendix A.3). Narrower encoders need
    higher rates: ELECTRA uses 3e-4 at width 256 and 1e-4 at width 768 (Clark et al., 2020, arXiv 2003.10555, table 7).
    """
    return float(f"{5e-5 * 768 / width:.1e}")


def _check_layout(config: Config, tokenizer: Tokenizer) -> None:
    """Raise UserError if the model cannot use a tokenizer that puts [CLS] last, as XLNet's does."""
    if not tokenizer.cls_last:
        return
    start = f"the tokenizer is XLNet's, with {tokenizer.piece(tokenizer.cls_id)} last"
    if any(isinstance(unwrapped(task.objective), CausalLM) for task in config.tasks.values()):
        raise UserError(
            f"{start}, and objective.kind=causal predicts the first token of a text from it; choose another tokenizer"
        )
    if (segments := config.model.embeddings.segments) and config.model.block.streams is not Streams:
        raise UserError(
            f"{start} and in a segment of its own, and the model has embeddings of {segments} segments; choose another "
            "tokenizer, or set model.embeddings.segments=0"
        )


def resolve(feeds: Feeds) -> Feeds:
    """Return feeds with a resolved configuration: steps, rows, warm-up, learning rate, task weights, evaluations."""
    config = feeds.config
    _check_layout(config, feeds.store.tokenizer)
    stages, rows, rows_of = list(config.stages), 0, {}
    for index, stage in enumerate(stages):
        epochs = {task: feeds.epoch(task, stage.seq_len) for task in stage.among(config.tasks)}
        rows = sum(of_task for of_task, _ in epochs.values())
        rows_of |= {task: float(of_task) for task, (of_task, _) in epochs.items()}
        if stage.examples:
            # Packing puts several examples into a row: convert with the mean number of examples per row.
            examples = sum(of_task for _, of_task in epochs.values())
            stage = dataclasses.replace(stage, batch=max(1, round(stage.examples * rows / examples)))
        if stage.epochs:
            steps = max(stage.min_steps, math.ceil(stage.epochs * rows / stage.batch))
            stage = dataclasses.replace(stage, steps=steps)
        stages[index] = stage
    # Without a weight, a task gets turns in proportion to its rows, so that all tasks finish their epochs together.
    tasks = {
        name: task if task.weight is not None else dataclasses.replace(task, weight=rows_of[name])
        for name, task in config.tasks.items()
    }
    config = dataclasses.replace(config, tasks=tasks, stages=tuple(stages))
    # A FLOPs budget needs the batch and the task weights, so it is converted last.
    stages = [_with_steps(config, index, feeds.store.tokenizer.vocab_size) for index in range(len(stages))]
    optimizer = dataclasses.replace(config.optimizer, warmup_steps=warmup_steps(stages, config.optimizer))
    if optimizer.learning_rate is None:
        optimizer = dataclasses.replace(optimizer, learning_rate=fine_tuning_rate(config.model.width))
    evaluation = config.eval
    if not evaluation.every:
        # `rows` is still that of the last stage: evaluate once per epoch.
        evaluation = dataclasses.replace(evaluation, every=math.ceil(rows / stages[-1].batch))
    resolved = dataclasses.replace(config, stages=tuple(stages), optimizer=optimizer, eval=evaluation)
    return dataclasses.replace(feeds, config=resolved)


def _with_steps(config: Config, index: int, vocab_size: int) -> Stage:
    """Return a stage with the number of steps that its FLOPs budget allows."""
    stage = config.stages[index]
    if not stage.flops:
        return stage
    encoder = resolve_encoder(config, vocab_size, model=config.model_at(index))
    cost = stage_flops.per_step(make_setup(config, encoder), index)
    if (steps := round(stage.flops / cost)) < 2:
        raise UserError(
            f"stages.{index}.flops={stage.flops:.3g} is less than two steps of {cost:.3g} FLOPs; allow more, or lower "
            f"stages.{index}.batch"
        )
    return dataclasses.replace(stage, steps=steps)


def with_measured_steps(setup: Setup, feeds: Feeds, before: RunRecord | None) -> Config:
    """Return the configuration with the steps that take about `stages.0.minutes`, as measured at the first start.

    Compilation, the final evaluation and the export come on top. Warm-up and decay keep their share of the steps. A run
    that is continued with more minutes has proportionally more steps.

    Args:
      setup: that of the run with the steps of its recipe.
      feeds: its data.
      before: record of the run if it resumes.

    Raises:
      UserError: the time is too short for two steps.
    """
    config = setup.config
    stage = config.stages[0]
    if before is None:
        return scaled(config, _measured(setup, feeds))
    started = before.config.stages[0]
    if not started.minutes:  # another run, which `check_identity` refuses
        return config
    steps = round(cast(int, started.steps) * cast(float, stage.minutes) / started.minutes)
    print(f"minutes: {steps:,} steps, as measured at the first start", flush=True)
    return scaled(config, steps)


def _measured(setup: Setup, feeds: Feeds) -> int:
    """Time the steps of a run, and return and print how many of them fit."""
    config, (stage,) = setup.config, setup.config.stages
    minutes, recipe_steps, every = cast(float, stage.minutes), cast(int, stage.steps), config.eval.every
    weights = {name: task.weight or 0.0 for name, task in config.tasks.items()}
    state, frozen, own = init_state(setup), init_frozen([setup])[setup], 0.0
    for name, weight in weights.items():  # the mean over the tasks that take turns
        state, of_task = _time_task(setup, feeds, name, state, frozen[name])
        own += weight / sum(weights.values()) * of_task
    seconds = processes.from_writer(lambda: own, "seconds-per-step")
    scored = [feed.plans[0].counts.rows for feed in (*feeds.heldout.values(), *feeds.further_heldout.values())]
    rows = sum(min(config.eval.rows or math.inf, each) for each in scored) * (2 if config.optimizer.ema_decay else 1)
    evaluation = rows / cast(int, stage.batch) * seconds * _EVALUATION_SHARE
    steps = steps_in(60 * minutes, seconds, evaluation, every, recipe_steps)
    if steps < 2:
        raise UserError(
            f"stages.0.minutes={minutes:g} is less than two steps of {seconds:.3g} s; allow more, or lower "
            "stages.0.batch"
        )
    between = (steps - 1) // interval(every, steps, recipe_steps)
    print(
        f"minutes: {steps:,} steps of {seconds:.3g} s take about {minutes:g} minutes on these devices"
        + (f", with {between:,} evaluations of {evaluation:.3g} s" if between else "")
        + "; compilation, the last evaluation and the export come on top",
        flush=True,
    )
    return steps


def steps_in(seconds: float, step: float, evaluation: float, every: int, recipe_steps: int) -> int:
    """Return the steps that fit into a time, with the evaluations between them, as two significant digits.

    Args:
      seconds: the whole time.
      step: seconds per step.
      evaluation: seconds per evaluation.
      every: steps between evaluations in the recipe.
      recipe_steps: steps of the recipe.
    """
    # A run that ends before `every` has as many evaluations as the recipe, see `interval`. Half of the time is left for
    # steps whatever they take, so a short run with slow evaluations is longer than planned.
    between = min((recipe_steps - 1) // every, _MOST_BETWEEN) * evaluation
    short = max(seconds - between, seconds / 2) / step
    long = seconds / (step + evaluation / every)
    steps = long if long > every else min(short, every)
    digits = 10 ** max(0, math.floor(math.log10(max(steps, 1))) - 1)
    return int(steps // digits * digits)


def interval(every: int, steps: int, recipe_steps: int) -> int:
    """Return the steps between two evaluations or checkpoints in a run of other steps than the recipe.

    An interval that is longer than the run keeps its share of the steps, as the warm-up does, but is at least a tenth
    of them: a million steps with 1,000 evaluations must not become 500 with an evaluation after each.
    """
    if every <= steps:
        return every
    parts = _MOST_BETWEEN + 1
    return max(-(-every * steps // recipe_steps), -(-steps // parts))  # rounded up: not more of them than in the recipe


def scaled(config: Config, steps: int) -> Config:
    """Return a resolved configuration with other steps, and with warm-up, decay and long intervals of the same share.

    Args:
      config: the configuration, with the steps of its recipe.
      steps: steps of the run.
    """
    (stage,), optimizer = config.stages, config.optimizer
    of = cast(int, stage.steps)
    stages = (dataclasses.replace(stage, steps=steps),)
    # Rounded down: warm-up and decay together must not be longer than the run.
    lengths = {
        name: max(1, steps * length // of)
        for name in _SCHEDULE_STEPS
        if (length := getattr(optimizer.schedule, name, 0))
    }
    optimizer = dataclasses.replace(optimizer, schedule=dataclasses.replace(optimizer.schedule, **lengths))
    warmup = warmup_steps(stages, optimizer) if optimizer.warmup_share else steps * optimizer.warmup_steps // of
    optimizer = dataclasses.replace(optimizer, warmup_steps=warmup, warmup_tokens=0.0)
    evaluations = dataclasses.replace(config.eval, every=interval(config.eval.every, steps, of))
    saves = dataclasses.replace(config.runtime, save_every=interval(config.runtime.save_every, steps, of))
    return dataclasses.replace(config, stages=stages, optimizer=optimizer, eval=evaluations, runtime=saves)


def _time_task(setup: Setup, feeds: Feeds, name: str, state: State, frozen: dict | None) -> tuple[State, float]:
    """Train with real batches of one task, and return the state and the seconds per step without compilation."""
    (stage,), runtime, mesh = setup.config.stages, setup.config.runtime, setup.layout.mesh
    # Rows are endless, but the timetable ends with the run, which may be shorter than this measurement.
    endless = dataclasses.replace(stage, steps=2**30)
    timetable = dataclasses.replace(make_timetable(setup.config), stages=(endless,), weights={name: 1.0})
    make = LocalBatches(timetable.at, feeds.train, *batch_shards(mesh))
    batches = iterate(make, 0, timetable.steps, runtime.workers, prefetch=2)
    chunk, in_call = compile_chunk(setup, name, 0), runtime.steps_per_call

    def seconds_of(calls: int) -> float:
        nonlocal state
        started = time.perf_counter()
        for _ in range(calls):
            local = [next(batches) for _ in range(in_call)]
            state, _ = chunk(state, frozen, put_batches(local, mesh))
        jax.block_until_ready(state)
        return (time.perf_counter() - started) / calls

    seconds_of(1)  # compiles
    # All processes must make the same calls, since a step exchanges gradients between them.
    own = seconds_of(1)
    first = processes.from_writer(lambda: own, "first-step")
    seconds = seconds_of(min(max(round(_SECONDS / first), _FEWEST), _MOST))
    batches.close()
    return state, seconds / in_call
