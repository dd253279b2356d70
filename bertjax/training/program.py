"""What a configuration and a token store make together: everything that stays fixed while steps go by."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from bertjax.config import Config
from bertjax.data.pipeline import Feed
from bertjax.data.store import TokenStore
from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import Objective
from bertjax.training import schedules
from bertjax.training.feeds import make_feed
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
    def opened_objective(self) -> Objective:
        """The objective with what its features read besides the batch."""
        return self.objective.opened(self.store)

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

    @functools.cached_property
    def train_feeds(self) -> dict[tuple[str, int], Feed]:
        """A feed for every (task, sequence length) that the stages train."""
        return {
            (self.config.task_name, stage.seq_len): self._feed("train", stage.seq_len) for stage in self.config.stages
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
        return self._feed("heldout", self.config.stages[-1].seq_len)

    def _feed(self, split: str, seq_len: int) -> Feed:
        return make_feed(self.config, self.store, split, seq_len)
