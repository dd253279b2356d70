"""Optional methods of objectives. Each protocol is one ability, and has one user that checks for it.

An objective has an ability by defining the methods; it need not inherit from the protocol. State that crosses steps is
an ability too, with methods to inherit: `bertjax.objectives.slots`.
"""

from typing import Any, Protocol, Self, runtime_checkable

import jax
import numpy as np

from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import Record
from bertjax.data.store import TokenStore
from bertjax.models.config import EncoderConfig
from bertjax.models.flops import FlopsPart
from bertjax.objectives.host import RecordScores, Sample

Arrays = dict[str, jax.Array]


@runtime_checkable
class ReadsStore(Protocol):
    """An objective whose `features` need more than the examples, such as a lexicon or a table of token pairs."""

    @property
    def fingerprints(self) -> dict[str, str]:
        """{resource loaded by `bind`: its fingerprint}; part of the run's identity."""

    def bind(self, store: TokenStore | None) -> Self:
        """Host: return the objective with the resources that `features` reads.

        Without a store, the resources are empty but have the same types, which is enough to get feature shapes.
        """


@runtime_checkable
class DeclaresFlops(Protocol):
    """An objective whose FLOPs are not those of one encoder without a head."""

    def flops_parts(self, config: EncoderConfig) -> tuple[FlopsPart, ...]:
        """Return the FLOPs of a step by encoder, the trained one first."""


@runtime_checkable
class HasSoftLogits(Protocol):
    """An objective with predictions that a student can compare with its teacher's."""

    def soft_logits(self, logits: Any, batch: Arrays) -> jax.Array:
        """Device: select, from the result of `logits`, the logits [..., C] to compare."""

    def soft_weights(self, batch: Arrays) -> jax.Array:
        """Device: return the weight of each prediction in `soft_logits`, float32 [...]; labels are not needed."""


@runtime_checkable
class HasBaselines(Protocol):
    """An objective with scores that need no model."""

    def baselines(
        self, batch: dict[str, np.ndarray], token_counts: np.ndarray
    ) -> dict[str, tuple[float | np.ndarray, float]]:
        """Host: return {metric: (sum, weight)} for model-free baselines on an evaluation batch.

        A sum may be an array with one entry per constant answer; the best answer over all batches counts. A class that
        overrides `terms_of`, `terms` or `weights` has no baselines unless it defines them too.

        Args:
          batch: core batch and features.
          token_counts: counts in the training split, int64: tokens [vocabulary] or labels [classes].
        """


@runtime_checkable
class HasSamples(Protocol):
    """An objective that shows its guesses to people."""

    def samples(self, outputs: dict[str, np.ndarray], batch: dict[str, np.ndarray], tokenizer) -> list[Sample]:
        """Host: return rows with the model's guesses.

        Args:
          outputs: arrays from `outputs` for these rows, with padding.
          batch: the rows.
          tokenizer: the corpus tokenizer.
        """


@runtime_checkable
class ScoredByRecord(Protocol):
    """An objective with metrics that average over the records of a labeled file. `compare` resamples records."""

    def scores(self, outputs: dict, examples: Ragged, records: list[Record]) -> dict[str, RecordScores]:
        """Host: return these metrics by record. Arguments as in `Objective.score`."""


def check_methods(kind: type) -> None:
    """Raise TypeError if a class has some methods of an ability and lacks others.

    `isinstance` needs all methods of a protocol, so a class that lacks one would have no ability, without any message.
    """
    for protocol in (ReadsStore, HasSoftLogits):
        methods = [name for name in vars(protocol) if not name.startswith("_")]
        missing = [name for name in methods if not hasattr(kind, name)]
        if missing and missing != methods:
            defined = next(name for name in methods if name not in missing)
            raise TypeError(
                f"{kind.__name__} defines {defined} without {missing[0]}; define both, see {protocol.__name__} in "
                "bertjax.objectives.optional"
            )


def question_of(objective: object) -> str:
    """Return the kind of bertjax whose question an objective from outside answers; empty if it declares none.

    A class with `question = "bert"` has the features of `bert` in evaluations, and computes its metrics of the same
    names in the same way, so that runs of both are compared by these. A subclass may change that, and has to say it
    again.
    """
    return vars(type(objective)).get("question", "")


def defined_in(kind: type, method: str) -> type:
    """Return the class that a class has a method from; `object` if there is none."""
    return next((each for each in kind.__mro__ if method in vars(each)), object)


def bind(objective: Any, store: TokenStore | None = None) -> Any:
    """Return an objective with the resources that its features read; by default empty ones."""
    return objective.bind(store) if isinstance(objective, ReadsStore) else objective


def flops_parts(objective: object, config: EncoderConfig) -> tuple[FlopsPart, ...]:
    """Return the FLOPs of an objective's step by encoder; by default, it has no head."""
    return objective.flops_parts(config) if isinstance(objective, DeclaresFlops) else (FlopsPart(config),)
