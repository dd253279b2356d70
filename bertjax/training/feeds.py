"""From a configuration and its data to the feeds of its task: which plans, whose turn, in which order."""

import dataclasses
import functools
import math
from collections.abc import Iterator

from bertjax import opening
from bertjax.config import Config
from bertjax.data import tokenizer
from bertjax.data.examples import Vocabulary
from bertjax.data.labelled.base import LabelledFormat
from bertjax.data.labelled.source import LabelledPlan, LabelledSource
from bertjax.data.order import SMALLEST_SHARE, Epochs, Turns
from bertjax.data.pipeline import Feed
from bertjax.data.plan import Plan, Spec, open_or_make
from bertjax.data.preparation import open_or_prepare
from bertjax.data.store import TokenStore
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.objectives.base import Objective


@dataclasses.dataclass(frozen=True)
class Feeds:
    """What a run trains on, and what it is evaluated on.

    Attributes:
      config: of the run.
      store: its corpus, or the files of its labelled examples.
    """

    config: Config
    store: TokenStore | LabelledSource

    @functools.cached_property
    def objective(self) -> Objective:
        """The objective with what its features read besides the batch."""
        objective = self.config.task.objective
        return objective.opened(self.store) if isinstance(self.store, TokenStore) else objective

    @functools.cached_property
    def train(self) -> dict[tuple[str, int], Feed]:
        """A feed for every (task, sequence length) that the stages train."""
        lengths = dict.fromkeys(stage.seq_len for stage in self.config.stages)
        return {(self.config.task_name, seq_len): self.feed("train", seq_len) for seq_len in lengths}

    @property
    def fingerprints(self) -> dict[str, str]:
        """Of the rows of every training feed, by task and T."""
        return {f"{task}/{seq_len}": feed.fingerprint for (task, seq_len), feed in self.train.items()}

    @functools.cached_property
    def heldout(self) -> Feed:
        """Held-out rows as long as those of the last stage."""
        return self.feed("heldout", self.config.stages[-1].seq_len)

    def feed(self, split: str, seq_len: int) -> Feed:
        """Batches of a split, its rows in a random order, which is another one in every epoch.

        Held-out rows are those of all sources together. So are training rows, unless the sources have weights of
        their own: each is then planned apart, and has `weight` times the turns that its rows would give it.

        Raises:
          UserError: the split is too small for the example format, or a source for its weight.
        """
        train = split == "train"
        sources = self.config.data.named_sources if isinstance(self.store, TokenStore) else {}
        apart = train and len({source.weight for source in sources.values()}) > 1
        epochs = tuple(
            Epochs(
                plans=tuple(self._plans(split, seq_len, name)),
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
            features=self.objective.features,
            vocabulary=Vocabulary.of(self.store.tokenizer),
            seq_len=seq_len,
        )

    def _plans(self, split: str, seq_len: int, source: str) -> Iterator[Plan | LabelledPlan]:
        task = self.config.task
        for number in range(task.plans if split == "train" else 1):
            spec = Spec(split, task.examples, seq_len, self.config.seed, task.row_examples, source, number)
            if isinstance(self.store, LabelledSource):
                yield self.store.plan(spec, task.objective.classes)
            else:
                yield open_or_make(self.store, spec)


def open_feeds(config: Config) -> Feeds:
    """Opens the data of a run, and fills in what its configuration leaves to the data.

    That is, for labelled examples, the names of the classes; and steps, rows of a batch, warm-up and evaluations where
    they are said in epochs, examples and shares.

    Raises:
      UserError: the data cannot be read, or does not serve.
    """
    task = config.task
    if not isinstance(task.examples, LabelledFormat):
        return _filled(Feeds(config, open_or_prepare(config.data, may_prepare=True)))
    source = LabelledSource(task.examples, _tokenizer_of(config))
    if "classes" in {field.name for field in dataclasses.fields(task.objective)}:
        objective = dataclasses.replace(task.objective, classes=source.classes)
        config = dataclasses.replace(config, tasks={config.task_name: dataclasses.replace(task, objective=objective)})
    return _filled(Feeds(config, source))


def _tokenizer_of(config: Config) -> Tokenizer:
    asked = config.data.tokenizer
    if asked.model:
        return tokenizer.from_model(asked.model, asked.lowercase)
    if not config.init_from:
        raise UserError(
            "labelled examples need the tokenizer of a model; set init_from to what is fine-tuned, or "
            "data.tokenizer.model"
        )
    return opening.open_tokenizer(config.init_from)


def _filled(feeds: Feeds) -> Feeds:
    config = feeds.config
    stages, rows = list(config.stages), 0
    for index, stage in enumerate(stages):
        plans = [source.plans[0].counts for source in feeds.train[config.task_name, stage.seq_len].sources]
        rows = sum(counts.rows for counts in plans)
        if stage.examples:
            examples = sum(counts.examples for counts in plans)
            stage = dataclasses.replace(stage, batch=max(1, round(stage.examples * rows / examples)))
        if stage.epochs:
            stage = dataclasses.replace(stage, steps=math.ceil(stage.epochs * rows / stage.batch))
        stages[index] = stage
    optimizer, evaluation = config.optimizer, config.eval
    if optimizer.warmup_share:
        steps = sum(stage.steps for stage in stages)
        optimizer = dataclasses.replace(optimizer, warmup_steps=int(optimizer.warmup_share * steps))
    if not evaluation.every:
        evaluation = dataclasses.replace(evaluation, every=math.ceil(rows / stages[-1].batch))
    filled = dataclasses.replace(config, stages=tuple(stages), optimizer=optimizer, eval=evaluation)
    return dataclasses.replace(feeds, config=filled)
