"""The split of a labeled file, as files in the workdir: what was held out stays so, even if the file changes."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.config.config import Config
from bertjax.data.labeled.base import SPLITS, WHERE, LabeledFormat, Record
from bertjax.runtime import storage
from bertjax.training.run.workdir import Workdir, read_jsonl, write_jsonl


def write(files: Workdir, task: str, divided: Mapping[str, Sequence[Record]]) -> None:
    """Write the training and held-out records of a task whose labeled file is divided, as JSON lines."""
    for split, records in divided.items():
        write_jsonl(files.split(task, split), map(_content, records))


def are_written(files: Workdir, task: str, divided: Mapping[str, Sequence[Record]]) -> bool:
    """Return whether the files of a run have these records."""
    return all(
        read_jsonl(files.split(task, split)) == list(map(_content, records)) for split, records in divided.items()
    )


def _content(record: Record) -> Record:
    return {name: value for name, value in record.items() if name != WHERE}


def named(files: Workdir, config: Config) -> Config:
    """Return the configuration of a run with the files of its split in place of a divided one."""
    tasks = dict(config.tasks)
    for name, task in config.tasks.items():
        train, heldout = (files.split(name, split) for split in SPLITS)
        if isinstance(task.examples, LabeledFormat) and storage.exists(heldout):
            settings: dict[str, Any] = {"train": os.fspath(train), "heldout": os.fspath(heldout)}
            examples = dataclasses.replace(task.examples, **settings)
            tasks[name] = dataclasses.replace(task, examples=examples)
    return dataclasses.replace(config, tasks=tasks)
