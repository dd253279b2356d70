"""Data feeds of a run: plans for each task, turns between sources, and row order."""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from bertjax.config.config import Config
from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.coverage import check_documents, check_labels
from bertjax.data.examples import Vocabulary
from bertjax.data.labeled.source import LabeledPlan, LabeledSource, LabeledSources
from bertjax.data.order import SMALLEST_SHARE, Epochs, Turns
from bertjax.data.pipeline import Features, Feed
from bertjax.data.plan import Counts, Plan, Spec, open_or_make
from bertjax.data.store import TokenStore
from bertjax.objectives.base import Objective
from bertjax.objectives.wrapper import Taught
from bertjax.runtime.errors import UserError
from bertjax.training.config import Stage
from bertjax.training.stages import last_stage, stage_at

log = logging.getLogger(__name__)

# Minimum number of held-out documents for a score per source; with fewer, the score would be mostly noise.
FEWEST_SCORED = 5


@dataclasses.dataclass(frozen=True)
class FeaturesByStage:
    """Features for a task whose masking changes between stages.

    Attributes:
      objective: objective for evaluations.
      stages: all stages of the run.
      by_stage: objective for training, one per stage.
    """

    objective: Objective
    stages: tuple[Stage, ...]
    by_stage: tuple[Objective, ...]

    def __call__(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        # Evaluations have no step: they keep one masking, so that scores of different stages are comparable.
        is_training = draw.step is not None
        objective = self.by_stage[stage_at(self.stages, draw.step)[0]] if is_training else self.objective
        return objective.features(examples, draw)


@dataclasses.dataclass(frozen=True)
class Feeds:
    """Training and held-out batches of a run. Plans are made on first use of a feed, or all at once by `plan`.

    Attributes:
      config: configuration of the run.
      store: corpus, or labeled files.
    """

    config: Config
    store: TokenStore | LabeledSource | LabeledSources

    def store_of(self, task: str) -> TokenStore | LabeledSource:
        """Return the corpus or labeled files that a task reads."""
        return self.store.of[task] if isinstance(self.store, LabeledSources) else self.store

    def plan(self) -> None:
        """Make all plans of the run now, which may take minutes.

        Raises:
          UserError: a split is too small, a source has too few rows for its weight, or features are not a function of
            the rows and the draw.
        """
        _ = self.heldout, self.further_heldout  # creating a feed makes its plans
        steps = [stage.steps for stage in self.config.stages]
        # The first step of each stage, which may have a masking of its own, once all lengths are resolved.
        starts = [] if None in steps else itertools.accumulate(cast(list[int], steps[:-1]), initial=0)
        for step, ((task, _), feed) in itertools.product(starts, self.train.items()):
            first, second = (feed.batch(np.arange(8), step) for _ in range(2))
            for name, array in first.items():
                if not np.array_equal(array, second[name]):
                    raise UserError(
                        f"tasks.{task}: features() returns another {name!r} for the same rows, so no run could be "
                        "resumed or repeated; draw with bertjax.data.masking.token_bits in place of np.random"
                    )

    @functools.cached_property
    def objectives(self) -> dict[str, Objective]:
        """{task: objective with the resources that its features read, such as a lexicon}, without teachers.

        Raises:
          UserError: the teacher has another tokenizer.
        """
        for objective in (task.objective for task in self.config.tasks.values()):
            if isinstance(objective, Taught) and objective.bound_teacher is not None:
                objective.bound_teacher.check_tokenizer(self.store.tokenizer.fingerprint, objective.reads_text)
        return {name: self._bound(task.objective) for name, task in self.config.tasks.items()}

    def _bound(self, objective: Objective) -> Objective:
        if isinstance(self.store, TokenStore):
            objective = objective.bind(self.store)
        # The objective is pickled for worker processes, which make batches only; a teacher's weights would be copied.
        return objective.copy_with(bound_teacher=None) if isinstance(objective, Taught) else objective

    def _features(self, task: str) -> Features:
        objective, stages = self.objectives[task], self.config.stages
        if not any(stage.masking or stage.masking_rate for stage in stages):
            return objective.features
        return FeaturesByStage(objective, stages, self._by_stage[task])

    @functools.cached_property
    def _by_stage(self) -> dict[str, tuple[Objective, ...]]:
        """{task: objective for training, one per stage}."""
        config, stages = self.config, range(len(self.config.stages))
        return {
            name: tuple(self._bound(config.task_at(index, name).objective) for index in stages) for name in config.tasks
        }

    @functools.cached_property
    def train(self) -> dict[tuple[str, int], Feed]:
        """{(task, T): feed} for every pair in the stages."""
        stages = self.config.stages
        pairs = ((task, stage.seq_len) for stage in stages for task in stage.among(self.config.tasks))
        # `dict.fromkeys` drops duplicates and keeps the order of the stages; a set would not.
        return {(task, seq_len): self.feed("train", seq_len, task) for task, seq_len in dict.fromkeys(pairs)}

    @property
    def fingerprints(self) -> dict[str, str]:
        """Row fingerprints of all training feeds, by `task/T`."""
        return {f"{task}/{seq_len}": feed.fingerprint for (task, seq_len), feed in self.train.items()}

    @property
    def read(self) -> dict[str, str]:
        """{resource that an objective reads: fingerprint}."""
        readers = [(task, "", objective) for task, objective in self.objectives.items()]
        for index, stage in enumerate(self.config.stages):
            if stage.masking:
                readers += [(task, f"stages.{index}/", self._by_stage[task][index]) for task in self.config.tasks]
        return {
            place + self.config.qualified(task, name): fingerprint
            for task, place, objective in readers
            for name, fingerprint in objective.fingerprints.items()
        }

    @functools.cached_property
    def heldout(self) -> dict[str, Feed]:
        """{task: feed with held-out rows}. T is taken from the last stage that trains the task."""
        return {task: self.feed("heldout", self._last_seq_len(task), task) for task in self.config.tasks}

    @functools.cached_property
    def further_heldout(self) -> dict[tuple[str, str], Feed]:
        """{(task, name): feed} for additional held-out files of labeled formats, and for single sources of a corpus."""
        feeds = {}
        for task in self.config.tasks:
            store, seq_len = self.store_of(task), self._last_seq_len(task)
            if isinstance(store, LabeledSource):
                feeds |= {(task, name): self.feed(name, seq_len, task) for name in store.format.further_heldout}
            else:
                feeds |= {(task, name): self.feed("heldout", seq_len, task, name) for name in _scored_alone(store)}
        return feeds

    def _last_seq_len(self, task: str) -> int:
        return last_stage(self.config.stages, self.config.tasks, task).seq_len

    def feed(self, split: str, seq_len: int, task: str = "", source: str = "") -> Feed:
        """Return the batches of a split for a task (the first by default). Each epoch has its own random row order.

        Held-out rows come from all sources together, or from one. Training rows come from all of them together, unless
        `data` weights the sources: then each source is planned separately and gets turns according to `_draws`.

        Raises:
          UserError: the split is too small for the example format, or a source has too few rows for its weight.
        """
        task = task or self.config.task_name
        names = self._sources_with_turns if split == "train" else [source]
        epochs = tuple(
            Epochs(
                plans=tuple(self._plans(task, split, seq_len, name)),
                stream=f"rows/{name}" if name else "rows",
                seed=self._seed_of(split),
                shuffle=True,  # a plan starts with its fullest rows, and an evaluation may use only some of them
            )
            for name in names
        )
        counts = [each.plans[0].counts for each in epochs]
        draws = [*map(self._draws, names, counts)] if len(names) > 1 else [1.0]
        shares = tuple(draw / sum(draws) for draw in draws)
        # `Turns` repeats a table of 4,096 turns, in which a rarer source would have none.
        if min(shares) < SMALLEST_SHARE:
            name = names[shares.index(min(shares))]
            raise UserError(
                f"data.sources.{name} would have {min(shares):.3%} of the rows, less than {SMALLEST_SHARE:.3%}; "
                "raise its weight or token_share, lower data.smoothing, or give all sources the same weight"
            )
        return Feed(epochs, Turns(shares), self._features(task), Vocabulary.of(self.store.tokenizer), seq_len)

    @property
    def _sources_with_turns(self) -> list[str]:
        """Sources that are planned separately, because `data` weights them; [""] if all sources share one plan."""
        sources = self.config.data.named_sources
        if not isinstance(self.store, TokenStore) or len(sources) < 2:
            return [""]
        # With equal weights, turns would be in proportion to the rows, which one common plan gives too.
        is_stated = self.config.data.smoothing < 1 or any(source.token_share for source in sources.values())
        return list(sources) if is_stated or len({source.weight for source in sources.values()}) > 1 else [""]

    def _draws(self, name: str, counts: Counts) -> float:
        """Return a source's relative frequency: `weight` x rows^`smoothing`, or the rows for its `token_share`."""
        source = self.config.data.named_sources[name]
        # Turns count rows, and sources pack different numbers of tokens into a row: convert token shares to row shares.
        if source.token_share:
            return source.token_share * counts.rows / counts.tokens
        return source.weight * counts.rows**self.config.data.smoothing

    def _seed_of(self, split: str) -> int:
        return self.config.seed if split == "train" else self.config.eval.seed

    def epoch(self, task: str, seq_len: int) -> tuple[int, int]:
        """Return the rows and examples of an epoch of a task."""
        counts = [source.plans[0].counts for source in self.train[task, seq_len].sources]
        return sum(each.rows for each in counts), sum(each.examples for each in counts)

    def _spec(self, name: str, split: str, seq_len: int, source: str = "", number: int = 0) -> Spec:
        task = self.config.tasks[name]
        return Spec(split, task.examples, seq_len, self._seed_of(split), task.row_examples, source, number)

    def _plans(self, name: str, split: str, seq_len: int, source: str) -> Iterator[Plan | LabeledPlan]:
        # Plans cut and pair the text in different ways, and epochs rotate through them. Held-out rows must not vary.
        task = self.config.tasks[name]
        for number in range(task.plans if split == "train" else 1):
            spec = self._spec(name, split, seq_len, source, number)
            store = self.store_of(name)
            if isinstance(store, LabeledSource):
                yield store.plan(spec, task.objective.classes)
                continue
            learns_order = split == "train" and task.examples.orders_sentences and task.objective.traits.labels
            if learns_order:
                check_documents(store.split(split, source), task.examples, name)
            plan = open_or_make(store, spec)
            if learns_order:
                check_labels(plan, task.examples, name)
            yield plan

    def source_shares(self, feed: Feed) -> dict[str, dict[str, float]]:
        """Return each source's share of a training feed; empty for a corpus with one source.

        Returns:
          {`tokens`: {source: share}}, and `rows` likewise unless the sources are packed together.
        """
        names = list(self.config.data.named_sources)
        if not isinstance(self.store, TokenStore) or len(names) < 2:
            return {}
        if len(feed.sources) == 1:
            counts = self.store.manifest["counts"]["train"]
            return {"tokens": _shares(names, [counts[name]["tokens"] for name in names])}
        first = [source.plans[0].counts for source in feed.sources]
        tokens = [share * counts.tokens / counts.rows for share, counts in zip(feed.turns.shares, first, strict=True)]
        return {"rows": _shares(names, feed.turns.shares), "tokens": _shares(names, tokens)}


def _shares(names: Sequence[str], amounts: Sequence[float]) -> dict[str, float]:
    return {name: amount / sum(amounts) for name, amount in zip(names, amounts, strict=True)}


def _scored_alone(store: TokenStore) -> list[str]:
    """Return the sources with enough held-out documents for their own score; none if there is only one source."""
    documents = {name: counts["documents"] for name, counts in store.manifest["counts"]["heldout"].items()}
    if len(documents) < 2:
        return []
    for name, count in documents.items():
        if count < FEWEST_SCORED:
            log.info("source %s has %d held-out documents, too few for a score of its own", name, count)
    return [name for name, count in documents.items() if count >= FEWEST_SCORED]
