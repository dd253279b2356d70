"""Open the data of a run, and resolve the settings that depend on it."""

import dataclasses
import math

from bertjax.config import Config
from bertjax.data import tokenizer
from bertjax.data.labeled.base import LabeledFormat
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.preparation.prepare import open_or_prepare
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.opening import SavedModel
from bertjax.training.feeds import Feeds


def open_feeds(config: Config) -> Feeds:
    """Open the data of a run and resolve its configuration.

    For labeled examples these are the names of the classes. Steps, rows of a batch, warm-up and evaluations are
    resolved if they are given as epochs, examples and shares.

    Returns:
      The feeds; their `config` has no open settings.

    Raises:
      UserError: the data cannot be read, or does not fit the configuration.
    """
    task = config.task
    if not isinstance(task.examples, LabeledFormat):
        return _resolved(Feeds(config, open_or_prepare(config.data, may_prepare=True)))
    source = LabeledSource(task.examples, _tokenizer_of(config))
    if task.has_classes:
        objective = dataclasses.replace(task.objective, classes=source.classes)
        config = dataclasses.replace(config, tasks={config.task_name: dataclasses.replace(task, objective=objective)})
    return _resolved(Feeds(config, source))


def _tokenizer_of(config: Config) -> Tokenizer:
    settings = config.data.tokenizer
    if settings.model:
        return tokenizer.from_model(settings.model, settings.lowercase)
    if not config.init_from:
        raise UserError(
            "labeled examples need the tokenizer of a model; set init_from to the model to fine-tune, or "
            "data.tokenizer.model"
        )
    return SavedModel(config.init_from).tokenizer


def _resolved(feeds: Feeds) -> Feeds:
    config = feeds.config
    stages, rows = list(config.stages), 0
    for index, stage in enumerate(stages):
        of_stage = [feeds.train[task, stage.seq_len] for task in stage.among(config.tasks)]
        plans = [source.plans[0].counts for feed in of_stage for source in feed.sources]
        rows = sum(counts.rows for counts in plans)
        if stage.examples:
            examples = sum(counts.examples for counts in plans)
            stage = dataclasses.replace(stage, batch=max(1, round(stage.examples * rows / examples)))
        if stage.epochs:
            stage = dataclasses.replace(stage, steps=math.ceil(stage.epochs * rows / stage.batch))
        stages[index] = stage
    steps = sum(stage.steps for stage in stages)
    optimizer = dataclasses.replace(config.optimizer, warmup_steps=config.optimizer.warmup(steps))
    evaluation = config.eval
    if not evaluation.every:
        evaluation = dataclasses.replace(evaluation, every=math.ceil(rows / stages[-1].batch))
    resolved = dataclasses.replace(config, stages=tuple(stages), optimizer=optimizer, eval=evaluation)
    return dataclasses.replace(feeds, config=resolved)
