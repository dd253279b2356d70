"""What a configuration and a token store make together: everything that stays fixed while steps go by."""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from bertjax.config import Config
from bertjax.data.examples import Vocabulary
from bertjax.data.order import Epochs, Turns
from bertjax.data.pipeline import Feed
from bertjax.data.plan import Plan, Spec, open_or_make
from bertjax.data.store import TokenStore
from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import Objective
from bertjax.training import schedules
from bertjax.training.optimizer import adamw
from bertjax.training.sharding import ENCODER_RULES, HEAD_RULES, Rules, shardings
from bertjax.training.stages import Timetable
from bertjax.training.state import State, abstract_state, init_state, new_state
from bertjax.training.step import StepContext


@dataclasses.dataclass(frozen=True)
class Program:
    """A run before its first step.

    Attributes:
      config: as given.
      store: its corpus.
      mesh: its devices.
    """

    config: Config
    store: TokenStore
    mesh: Mesh

    @functools.cached_property
    def encoder(self) -> EncoderConfig:
        return self.config.encoder(self.store.tokenizer.vocab_size, jax.default_backend())

    @property
    def objective(self) -> Objective:
        return self.config.task.objective

    @functools.cached_property
    def module(self) -> nn.Module:
        return self.objective.module(self.encoder)

    @functools.cached_property
    def frozen(self) -> dict | None:
        """The objective's frozen params, laid out by the same table as the trained ones."""
        params = self.objective.frozen_params(self.encoder)
        return None if params is None else jax.device_put(params, shardings(params, self.rules, self.mesh))

    @property
    def timetable(self) -> Timetable:
        return Timetable(self.config.stages, self.config.task_name, bool(self.config.data.overfit))

    @property
    def rules(self) -> Rules:
        return (*self.objective.sharding_rules, *ENCODER_RULES, *HEAD_RULES)

    @functools.cached_property
    def context(self) -> StepContext:
        steps, optimizer = self.timetable.steps, self.config.optimizer
        return StepContext(
            objective=self.objective,
            module=self.module,
            optimizer=adamw(optimizer),
            learning_rate=self._learning_rate(optimizer.learning_rate, optimizer.warmup_steps, steps),
            seed=self.config.seed,
            micro_batches=self.config.runtime.micro_batches,
            max_skipped=self.config.runtime.max_skipped,
        )

    @staticmethod
    def _learning_rate(peak: float, warmup_steps: int, steps: int) -> Callable[[jax.Array], jax.Array]:
        return lambda step: schedules.linear(step, peak, warmup_steps, steps)

    def feed(self, split: str, seq_len: int) -> Feed:
        """Batches of a split: the training rows shuffled anew in every epoch, the held-out ones always alike.

        Held-out rows are those of all sources together. So are training rows, unless the sources have weights of
        their own: each is then planned apart and takes its turns.
        """
        config, train = self.config, split == "train"
        sources = config.data.named_sources
        apart = train and len({source.weight for source in sources.values()}) > 1
        epochs = tuple(
            Epochs(
                plans=tuple(self._plans(split, seq_len, name, config.task.plans if train else 1)),
                stream=f"rows/{name}" if name else "rows",
                seed=config.seed,
                shuffle=train,
            )
            for name in (sources if apart else [""])
        )
        shares = [source.weight for source in sources.values()] if apart else [1.0]
        rows = [share * each.plans[0].counts.rows for share, each in zip(shares, epochs)]
        return Feed(
            sources=epochs,
            turns=Turns(tuple(count / sum(rows) for count in rows)),
            features=self.objective.features,
            vocabulary=Vocabulary.of(self.store.tokenizer),
            seq_len=seq_len,
        )

    def _plans(self, split: str, seq_len: int, source: str, count: int) -> Iterator[Plan]:
        task = self.config.task
        for number in range(count):
            spec = Spec(split, task.examples, seq_len, self.config.seed, task.row_examples, source, number)
            yield open_or_make(self.store, spec)

    @functools.cached_property
    def train_feeds(self) -> dict[tuple[str, int], Feed]:
        """A feed for every (task, sequence length) that the stages train."""
        return {
            (self.config.task_name, stage.seq_len): self.feed("train", stage.seq_len) for stage in self.config.stages
        }

    @functools.cached_property
    def abstract_state(self) -> State:
        """Shapes, dtypes and shardings of the state."""
        return abstract_state(self._create_state, self.mesh, self.rules)

    def init_state(self) -> State:
        """The state at step 0."""
        return init_state(self._create_state, self.abstract_state, self.config.seed)

    @functools.cached_property
    def _create_state(self) -> Callable[[jax.Array], State]:
        one_row = self.heldout_feed.batch(np.zeros(1, np.int64))
        return new_state(self.module, self.context.optimizer, one_row)

    @functools.cached_property
    def heldout_feed(self) -> Feed:
        """Held-out rows as long as those of the last stage."""
        return self.feed("heldout", self.config.stages[-1].seq_len)
