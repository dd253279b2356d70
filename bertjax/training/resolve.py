"""Opens the data of a run, and fills in what its configuration leaves to the data."""

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
    """Opens the data of a run, and fills in what its configuration leaves to the data.

    That is, for labeled examples, the names of the classes; and steps, rows of a batch, warm-up and evaluations where
    they are said in epochs, examples and shares.

    Raises:
      UserError: the data cannot be read, or does not serve.
    """
    task = config.task
    if not isinstance(task.examples, LabeledFormat):
        return _filled(Feeds(config, open_or_prepare(config.data, may_prepare=True)))
    source = LabeledSource(task.examples, _tokenizer_of(config))
    if task.has_classes:
        objective = dataclasses.replace(task.objective, classes=source.classes)
        config = dataclasses.replace(config, tasks={config.task_name: dataclasses.replace(task, objective=objective)})
    return _filled(Feeds(config, source))


def _tokenizer_of(config: Config) -> Tokenizer:
    asked = config.data.tokenizer
    if asked.model:
        return tokenizer.from_model(asked.model, asked.lowercase)
    if not config.init_from:
        raise UserError(
            "labeled examples need the tokenizer of a model; set init_from to what is fine-tuned, or "
            "data.tokenizer.model"
        )
    return SavedModel(config.init_from).tokenizer


def _filled(feeds: Feeds) -> Feeds:
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
    filled = dataclasses.replace(config, stages=tuple(stages), optimizer=optimizer, eval=evaluation)
    return dataclasses.replace(feeds, config=filled)
