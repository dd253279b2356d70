"""From a configuration and its data to the feeds of its tasks: which plans, whose turn, in which order."""

import dataclasses
import functools
from collections.abc import Iterator

from bertjax.config import Config
from bertjax.data.examples import Vocabulary
from bertjax.data.labeled.source import LabeledPlan, LabeledSource
from bertjax.data.order import SMALLEST_SHARE, Epochs, Turns
from bertjax.data.pipeline import Feed
from bertjax.data.plan import Plan, Spec, open_or_make
from bertjax.data.store import TokenStore
from bertjax.errors import UserError
from bertjax.objectives.base import Objective


@dataclasses.dataclass(frozen=True)
class Feeds:
    """What a run trains on, and what it is evaluated on.

    Attributes:
      config: of the run.
      store: its corpus, or the files of its labeled examples.
    """

    config: Config
    store: TokenStore | LabeledSource

    @functools.cached_property
    def objectives(self) -> dict[str, Objective]:
        """The objective of each task, with what its features read besides the batch."""
        store = self.store if isinstance(self.store, TokenStore) else None
        return {
            name: task.objective.bind(store) if store else task.objective for name, task in self.config.tasks.items()
        }

    @functools.cached_property
    def train(self) -> dict[tuple[str, int], Feed]:
        """A feed for every (task, sequence length) that the stages train."""
        stages = self.config.stages
        wanted = ((task, stage.seq_len) for stage in stages for task in stage.among(self.config.tasks))
        return {(task, seq_len): self.feed("train", seq_len, task) for task, seq_len in dict.fromkeys(wanted)}

    @property
    def fingerprints(self) -> dict[str, str]:
        """Of the rows of every training feed, by task and T."""
        return {f"{task}/{seq_len}": feed.fingerprint for (task, seq_len), feed in self.train.items()}

    @property
    def read(self) -> dict[str, str]:
        """{what an objective reads besides the batch: its fingerprint}."""
        return {
            self.config.qualified(task, name): fingerprint
            for task, objective in self.objectives.items()
            for name, fingerprint in objective.fingerprints.items()
        }

    @functools.cached_property
    def heldout(self) -> dict[str, Feed]:
        """Held-out rows of each task, as long as those of the last stage that trains it."""
        lengths = {task: stage.seq_len for stage in self.config.stages for task in stage.among(self.config.tasks)}
        return {task: self.feed("heldout", lengths[task], task) for task in self.config.tasks}

    def feed(self, split: str, seq_len: int, task: str = "") -> Feed:
        """Batches of a split for a task (the first by default), its rows in a random order, another in every epoch.

        Held-out rows are those of all sources together. So are training rows, unless the sources have weights of
        their own: each is then planned apart, and has `weight` times the turns that its rows would give it.

        Raises:
          UserError: the split is too small for the example format, or a source for its weight.
        """
        task = task or self.config.task_name
        train = split == "train"
        sources = self.config.data.named_sources if isinstance(self.store, TokenStore) else {}
        apart = train and len({source.weight for source in sources.values()}) > 1
        epochs = tuple(
            Epochs(
                plans=tuple(self._plans(task, split, seq_len, name)),
                stream=f"rows/{name}" if name else "rows",
                seed=self.config.seed,
                shuffle=True,  # a plan begins with its fullest rows, and an evaluation may use a part of them
            )
            for name in (sources if apart else [""])
        )
        weights = [source.weight for source in sources.values()] if apart else [1.0]
        rows = [weight * each.plans[0].counts.rows for weight, each in zip(weights, epochs)]
        shares = tuple(count / sum(rows) for count in rows)
        if min(shares) < SMALLEST_SHARE:
            name = list(sources)[shares.index(min(shares))]
            raise UserError(
                f"data.sources.{name} would have {min(shares):.3%} of the rows, and the least is {SMALLEST_SHARE:.3%}; "
                "raise its weight, or give all sources the same"
            )
        return Feed(
            sources=epochs,
            turns=Turns(shares),
            features=self.objectives[task].features,
            vocabulary=Vocabulary.of(self.store.tokenizer),
            seq_len=seq_len,
        )

    def _plans(self, name: str, split: str, seq_len: int, source: str) -> Iterator[Plan | LabeledPlan]:
        task = self.config.tasks[name]
        for number in range(task.plans if split == "train" else 1):
            spec = Spec(split, task.examples, seq_len, self.config.seed, task.row_examples, source, number)
            if isinstance(self.store, LabeledSource):
                yield self.store.plan(spec, task.objective.classes)
            else:
                yield open_or_make(self.store, spec)
