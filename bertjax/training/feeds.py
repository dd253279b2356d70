"""From a configuration and a token store to the feeds of its task: which plans, whose turn, in which order."""

import dataclasses
import functools
from collections.abc import Iterator

from bertjax.config import Config
from bertjax.data.examples import Vocabulary
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
      store: its corpus.
    """

    config: Config
    store: TokenStore

    @functools.cached_property
    def objective(self) -> Objective:
        """The objective with what its features read besides the batch."""
        return self.config.task.objective.opened(self.store)

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
        sources = self.config.data.named_sources
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

    def _plans(self, split: str, seq_len: int, source: str) -> Iterator[Plan]:
        task = self.config.task
        for number in range(task.plans if split == "train" else 1):
            spec = Spec(split, task.examples, seq_len, self.config.seed, task.row_examples, source, number)
            yield open_or_make(self.store, spec)
