"""The split of a labeled file, as files in the workdir: what was held out stays so, even if the file changes."""

import dataclasses
import os
from typing import Any

from bertjax.config.config import Config
from bertjax.data.labeled.base import SPLITS, WHERE, LabeledFormat
from bertjax.data.labeled.source import LabeledSource
from bertjax.runtime import storage
from bertjax.training.run.workdir import Workdir, write_jsonl


def write(files: Workdir, task: str, source: LabeledSource) -> None:
    """Write the training and held-out records of a task whose labeled file is divided, as JSON lines."""
    for split, records in source.divided.items():
        write_jsonl(files.split(task, split), ({k: v for k, v in r.items() if k != WHERE} for r in records))


def named(files: Workdir, config: Config) -> Config:
    """Return the configuration of a run with the files of its split in place of a held-out share or a fold."""
    tasks = dict(config.tasks)
    for name, task in config.tasks.items():
        train, heldout = (files.split(name, split) for split in SPLITS)
        if isinstance(task.examples, LabeledFormat) and task.examples.is_divided and storage.exists(heldout):
            settings: dict[str, Any] = {"train": os.fspath(train), "heldout": os.fspath(heldout)}
            examples = dataclasses.replace(task.examples, **settings, folds=0, fold=None)
            tasks[name] = dataclasses.replace(task, examples=examples)
    return dataclasses.replace(config, tasks=tasks)
