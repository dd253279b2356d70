"""Epochs of the sources: as many as a count of the rows that a run draws."""

import dataclasses

import numpy as np
import pytest

from bertjax.config.config import Config, Task
from bertjax.data.config import DataConfig, SourceConfig, TokenizerConfig
from bertjax.data.formats.doc_sentences import DocSentences
from bertjax.data.formats.full_sentences import FullSentences
from bertjax.data.preparation.prepare import prepare
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.training.config import Stage
from bertjax.training.feeds import Feeds
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.results import source_epochs
from bertjax.training.stages import Timetable

STAGES = (Stage(steps=30, seq_len=48, batch=4), Stage(steps=20, seq_len=64, batch=2))
TASKS = {"a": Task(MaskedLM(), DocSentences(), plans=2), "b": Task(MaskedLM(), FullSentences())}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for name, size in (("large", 400), ("small", 40)):
        (folder / f"{name}.txt").write_text("".join(f"{name} {i} is {name}. So {i} is it.\n\n" for i in range(size)))
    sources = {name: SourceConfig(str(folder / f"{name}.txt")) for name in ("large", "small")}
    tokenizer, stores = TokenizerConfig(vocab_size=300), str(folder / "stores")
    return DataConfig(sources=sources, tokenizer=tokenizer, store=stores, workers=0)


def of(data, tasks, stages=STAGES):
    optimizer = OptimizerConfig(warmup_steps=1)
    config = Config(data=data, tasks=tasks, stages=stages, optimizer=optimizer)
    weights = {name: task.weight for name, task in tasks.items()}
    return Feeds(config, prepare(data)), Timetable(stages, weights)


@pytest.mark.parametrize("smoothing", [1.0, 0.3])
@pytest.mark.parametrize("tasks", [("b",), ("a", "b")])
def test_epochs_are_those_of_the_rows_that_the_steps_draw(data, smoothing, tasks):
    data = dataclasses.replace(data, smoothing=smoothing)
    feeds, timetable = of(data, {name: TASKS[name] for name in tasks})
    expected = np.zeros(2)
    for step in range(timetable.steps):
        spec = timetable.at(step)
        feed = feeds.train[spec.task, spec.seq_len]
        owners, _ = feed.turns.at(spec.first + np.arange(spec.rows))
        for source, drawn in enumerate(np.bincount(owners, minlength=len(feed.sources))):
            plans = feed.sources[source].plans
            expected[source if len(feed.sources) > 1 else slice(None)] += drawn / np.mean(
                [p.counts.rows for p in plans]
            )
    epochs = source_epochs.epochs_by_source(feeds, timetable)
    assert list(epochs) == ["large", "small"] and list(epochs.values()) == pytest.approx(expected)


def test_a_source_that_is_read_often_is_warned_about(data):
    feeds, timetable = of(dataclasses.replace(data, smoothing=0.0), {"b": TASKS["b"]})
    first, warning = source_epochs.lines(feeds, timetable)
    epochs = source_epochs.epochs_by_source(feeds, timetable)
    assert epochs["large"] < 4 < epochs["small"]
    assert first == f"epochs of the sources: large {epochs['large']:.1f}, small {epochs['small']:.1f}"
    assert warning.startswith(f"warning: the run reads small {epochs['small']:.1f} times") and "\n" not in warning
