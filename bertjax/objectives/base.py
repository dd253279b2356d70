"""The contract of an objective: what is predicted, and how it is scored.

The one training loop, evaluation and prediction know only what stands here. An objective is a frozen dataclass whose
fields are its configuration; everything it computes is a pure function of its arguments.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import PartitionSpec

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import Record
from bertjax.data.store import TokenStore
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoded, Encoder

Arrays = dict[str, jax.Array]


def encode(encoder: Encoder, batch: Arrays, key: jax.Array | None, read_BK: jax.Array | None = None) -> Encoded:
    """Runs the encoder on a core batch.

    Args:
      encoder: bound.
      batch: core arrays.
      key: for dropout; None for none of it.
      read_BK: the only positions besides each [CLS] whose hidden states are wanted; all of them by default.
    """
    return encoder(
        batch["tokens_BT"],
        batch["segments_BT"],
        batch["positions_BT"],
        batch["examples_BT"],
        batch["summary_positions_BN"],
        read_BK=read_BK,
        key=key,
    )


@dataclasses.dataclass(frozen=True)
class Sample:
    """One example as a person reads it: the text shown, and for each question the answer and the guesses for it."""

    text: str
    answers: tuple[str, ...]
    guesses: tuple[tuple[str, ...], ...]


class FlopsPart(NamedTuple):
    """A part of a step's FLOPs: an encoder that runs over every token.

    Attributes:
      encoder: its architecture.
      share: its FLOPs relative to a forward and backward pass; 1/3 for a forward pass only.
      predicts: whether a product with the vocabulary follows at the predicted positions.
    """

    encoder: EncoderConfig
    share: float = 1.0
    predicts: bool = True


@dataclasses.dataclass(frozen=True)
class Objective:
    """What every objective gives. `module`, `features`, `weights` and `terms` are its own; the rest has defaults.

    Attributes:
      labels: names of the labels that `features` reads, which the examples must carry.
      best_metric: the metric by which the best checkpoint is chosen, the higher the better; where it is empty, the loss
        of the first term, the lower the better.
      classes: names of the labels that are predicted, in the order of their numbers. An objective that predicts such
        makes this a field; a run fills it in from its training file.
      needs_global_batch: whether its terms compare the examples of a batch with each other, so that micro-batches would
        change them.
      group: so many neighboring slots of a row hold examples that belong together; N is a multiple of it.
    """

    labels: ClassVar[tuple[str, ...]] = ()
    best_metric: ClassVar[str] = ""
    classes: ClassVar[tuple[str, ...]] = ()
    needs_global_batch: ClassVar[bool] = False
    group: ClassVar[int] = 1

    def module(self, encoder: EncoderConfig) -> nn.Module:
        """The one Linen root; the roots of its params are `encoder`, `heads/<term>` and what else it trains."""
        raise TypeError(f"{type(self).__name__} has no module()")

    def bind(self, store: TokenStore | None) -> "Objective":
        """Host: the same objective, with what its `features` read besides the batch (a lexicon, for instance).

        Without a store, with something of the same kind that is empty: only the shapes of the features matter then.
        """
        return self

    @property
    def fingerprints(self) -> dict[str, str]:
        """{what `bind` read: its fingerprint}; part of the run."""
        return {}

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Host: the arrays of fixed shape that the objective adds to the core batch, or replaces in it."""
        raise TypeError(f"{type(self).__name__} has no features()")

    def weights(self, batch: Arrays) -> Arrays:
        """Device: {term: W}, the scalar that a term's sum is divided by; from the batch alone, never from params."""
        raise TypeError(f"{type(self).__name__} has no weights()")

    def terms(
        self, module: nn.Module, params: dict, frozen: dict | None, batch: Arrays, key: jax.Array, train: bool
    ) -> tuple[Arrays, dict[str, tuple[jax.Array, jax.Array]]]:
        """Device: ({term: S}, {metric: (sum, weight)}), scalars; the loss is the sum of coefficient * S / W.

        Args:
          module: what `module` gave.
          params: trained, as initialized by `module`.
          frozen: what `frozen_params` gave; never updated.
          batch: the core batch and the features, each with the batch axis first.
          key: for dropout and any other drawing on the device.
          train: whether dropout applies.
        """
        raise TypeError(f"{type(self).__name__} has no terms()")

    @property
    def coefficients(self) -> dict[str, float]:
        """{term: its factor in the loss}; a term that is not named has the factor 1."""
        return {}

    def frozen_params(self, encoder: EncoderConfig) -> dict | None:
        """Params that the terms read and nothing trains (a teacher); their fingerprint is part of the run."""
        return None

    def flops_parts(self, encoder: EncoderConfig) -> tuple[FlopsPart, ...]:
        """Return the parts of a step's FLOPs."""
        return (FlopsPart(encoder),)

    @property
    def sharding_rules(self) -> Sequence[tuple[str, PartitionSpec]]:
        """(regex on the path, spec) for params outside of `encoder`; heads that no rule names are replicated."""
        return ()

    def outputs(self, module: nn.Module, params: dict, batch: Arrays) -> Arrays:
        """Device: what the model says, as `<name>_BN...` (per example) or `<name>_BT...` (per token)."""
        return {}

    def score(self, outputs: dict[str, np.ndarray], examples: Ragged, records: list[Record]) -> dict[str, float]:
        """Host: metrics that are no sums (F1, correlations), over all the examples of an evaluation at once.

        Args:
          outputs: those of `outputs`, per example ([M, ...]) or per token ([tokens of all M examples, ...]).
          examples: the M examples, in the same order.
          records: of a labeled file, that of each example; none of a token store.
        """
        return {}

    def predictions(self, outputs: dict[str, np.ndarray], examples: Ragged, records: list[Record]) -> list[Record]:
        """Host: what the model says of each record, as plain JSON; the arguments are those of `score`.

        Examples that were made of the same record come together in one prediction.
        """
        return []

    def baselines(
        self, batch: dict[str, np.ndarray], token_counts: np.ndarray
    ) -> dict[str, tuple[float | np.ndarray, float]]:
        """Host: {metric: (sum, weight)} of what needs no model, on the same batch as an evaluation.

        A sum may be an array of those of several guesses, of which the one that is best over all batches counts.

        Args:
          batch: core batch and features.
          token_counts: of the training split: of its tokens, int64 [vocabulary], or of its labels, int64 [classes].
        """
        return {}

    def samples(self, outputs: dict[str, np.ndarray], batch: dict[str, np.ndarray], tokenizer) -> list[Sample]:
        """Host: the rows of a batch with what the model says of them, for a person to read."""
        return []
