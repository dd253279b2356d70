"""The contract of an objective: what is predicted, and how it is scored.

The training loop, evaluation and prediction use only what `Objective` declares. An objective is a frozen dataclass,
its fields are its settings, and everything it computes is a pure function of its arguments.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np
from jax.sharding import PartitionSpec

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import Record
from bertjax.data.store import TokenStore
from bertjax.models.config import EncoderConfig
from bertjax.models.flops import FlopsPart
from bertjax.models.mixing import apply
from bertjax.models.model import HeadSpec, Model
from bertjax.objectives import imitation, replacement
from bertjax.objectives.losses import Sums
from bertjax.objectives.outputs import Output, Sample
from bertjax.objectives.student import Student

Arrays = dict[str, jax.Array]
Key = jax.Array | None
# ({term: S}, {metric: (sum, weight)}), scalars.
Terms = tuple[Arrays, dict[str, Sums]]
# {path of an encoder: masks}, see `bertjax.models.taps`.
Taps = dict[str, Any] | None


@dataclasses.dataclass(frozen=True)
class Objective(Student):
    """What is predicted. A subclass must define `heads`, `logits`, `features`, `weights` and `terms_of`.

    The rest has defaults. Host methods work on numpy arrays, device methods are traced by JAX.

    Attributes:
      labels: names of the labels that `features` reads; the examples must carry them.
      best_metric: metric that chooses the best checkpoint, a score or a loss (`<term>_loss`). Every objective names
        one: `jax.jit` sorts the keys of dicts, so "the first term" would be the first by alphabet.
      text_term: the term that is the loss of predicted tokens of a text, in nats a token; empty if there is none.
      tuned_settings: names of settings that an evaluation tunes while they are None, and reports as metrics.
      classes: names of the predicted classes, by number; a field of objectives whose classes are in the training file.
      needs_global_batch: whether its terms compare examples of a batch with each other; micro-batches change them.
      needs_dropout: whether its terms compare two views of a text that differ only by dropout.
      reads_all_layers: whether its heads read all layers of the encoder (`bertjax.models.mixing`).
      group: number of neighboring slots of a row whose examples belong together; N is a multiple of it.
    """

    labels: ClassVar[tuple[str, ...]] = ()
    best_metric: ClassVar[str] = ""
    text_term: ClassVar[str] = ""
    tuned_settings: ClassVar[tuple[str, ...]] = ()
    classes: ClassVar[tuple[str, ...]] = ()
    needs_global_batch: ClassVar[bool] = False
    needs_dropout: ClassVar[bool] = False
    reads_all_layers: ClassVar[bool] = False
    group: ClassVar[int] = 1

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        """Return {name: head}. Heads of the same name in two tasks of a mixture share their parameters."""
        raise TypeError(f"{type(self).__name__} has no heads()")

    def generator(self, config: EncoderConfig) -> EncoderConfig | None:
        """Return the architecture of a second encoder on the same embeddings, None for an objective without one."""
        return None

    def logits(self, model: Model, batch: Arrays, key: Key = None) -> Any:
        """Device: return what the terms need from the bound model, by `model.encode` and `model.head`.

        Args:
          model: the model with its parameters.
          batch: the core batch and the features.
          key: for dropout; None for no dropout.
        """
        raise TypeError(f"{type(self).__name__} has no logits()")

    def model(self, config: EncoderConfig) -> Model:
        """Return the Linen module of the objective. The roots of its parameters are `encoder`, `heads/<name>`, ..."""
        return Model(config, self.heads(config), self.generator(config), computes_all=self.captures)

    def init(self, model: Model, key: jax.Array, batch: dict[str, Any]) -> dict:
        """Return initial parameters. Only the shapes of the batch matter."""
        shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in batch.items()}
        params = model.lazy_init(key, shapes, method=self.logits)["params"]
        return params | self.projections(model.config, key)

    def apply(
        self, model: Model, params: dict, batch: Arrays, key: Key = None, method: Any = None, taps: Taps = None
    ) -> Any:
        """Device: return what `logits`, or another method with its arguments, computes with these parameters."""
        variables = {"params": params} | ({"taps": taps} if taps else {})
        return apply(model, variables, batch, key, method=method or self.logits, with_layers=self.reads_all_layers)

    def bind(self, store: TokenStore | None) -> Self:
        """Host: return the objective with what its `features` read in addition to the batch, such as a lexicon.

        Without a store, what they read is of the same kind and empty: only the shapes of the features matter then.
        """
        return self

    @property
    def fingerprints(self) -> dict[str, str]:
        """{what `bind` read: its fingerprint}; part of the run's identity."""
        return {}

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Host: return arrays of fixed shape that are added to the core batch, or replace arrays of it.

        What the terms need of `draw.step`, such as a temperature that falls, is a feature as well.
        """
        raise TypeError(f"{type(self).__name__} has no features()")

    def weights(self, batch: Arrays) -> Arrays:
        """Device: return {term: W}, the scalar that a term's sum is divided by. It depends on the batch only."""
        raise TypeError(f"{type(self).__name__} has no weights()")

    def terms_of(self, logits: Any, batch: Arrays) -> Terms:
        """Device: return terms and metrics from what `logits` computed."""
        raise TypeError(f"{type(self).__name__} has no terms_of()")

    def terms(
        self, model: Model, params: dict, frozen: dict | None, batch: Arrays, key: Key, train: bool, taps: Taps = None
    ) -> Terms:
        """Device: return ({term: S}, {metric: (sum, weight)}); the loss is the sum of coefficient * S / W.

        Args:
          model: the module from `model`.
          frozen: parameters from `frozen_params`; never updated. With `slots`, if the objective has any.
          batch: the core batch and the features, each with the batch axis first.
          key: for dropout and other random draws on the device.
          train: whether dropout applies.
          taps: masks on heads and feed-forward channels; they can be differentiated like `params`.

        An objective with state that crosses steps may return a third value (`bertjax.objectives.slots`).
        """
        key = key if train else None
        if train and self.replaces:
            return replacement.terms(self, model, params, frozen, batch, key)
        if self.imitates:
            return imitation.terms(self, model, params, frozen, batch, key, taps)
        return self.terms_of(self.apply(model, params, batch, key, taps=taps), batch)

    @property
    def coefficients(self) -> dict[str, float]:
        """{term: its factor in the loss}; the factor of every other term is 1."""
        return {}

    def coefficients_at(self, step: jax.Array) -> dict[str, float | jax.Array]:
        """Device: return the `coefficients` of a training step, counted from 0, if they change during the run."""
        return self.coefficients

    def flops_parts(self, config: EncoderConfig) -> tuple[FlopsPart, ...]:
        """Return the parts of a step's FLOPs, the trained encoder first; by default it has no head."""
        return (FlopsPart(config),)

    @property
    def sharding_rules(self) -> Sequence[tuple[str, PartitionSpec]]:
        """(regex on the path, spec) for parameters outside of `encoder`; heads without a rule are replicated."""
        return ()

    def outputs(self, model: Model, params: dict, batch: Arrays, taps: Taps = None) -> dict[str, Output]:
        """Device: return what the model predicts per example, token, pair or row."""
        return {}

    def score(self, outputs: dict[str, np.ndarray], examples: Ragged, records: list[Record]) -> dict[str, float]:
        """Host: return metrics that are not sums (F1, correlations), over all examples of an evaluation at once.

        Args:
          outputs: the arrays of `outputs` without rows and padding (`regroup`): [M, ...] per example, [tokens of all M
            examples, ...] per token, [M / 2, ...] per pair.
          examples: the M examples, in the same order.
          records: the record of each example of a labeled file; empty for a token store.
        """
        return {}

    def predictions(self, outputs: dict[str, np.ndarray], examples: Ragged, records: list[Record]) -> list[Record]:
        """Host: return each record with its prediction, as plain JSON. The arguments are those of `score`.

        Examples that were made from the same record are combined into one prediction.
        """
        return []

    def baselines(
        self, batch: dict[str, np.ndarray], token_counts: np.ndarray
    ) -> dict[str, tuple[float | np.ndarray, float]]:
        """Host: return {metric: (sum, weight)} of baselines without a model, on a batch of an evaluation.

        A sum may be an array with an entry for each possible constant answer; the best one over all batches counts. A
        class that overrides `terms_of`, `terms` or `weights` has no baselines unless it defines them too.

        Args:
          batch: core batch and features.
          token_counts: counts in the training split: of tokens, int64 [vocabulary], or of labels, int64 [classes].
        """
        return {}

    def samples(self, outputs: dict[str, np.ndarray], batch: dict[str, np.ndarray], tokenizer) -> list[Sample]:
        """Host: return the rows of a batch with the model's guesses, for a person to read.

        Args:
          outputs: the arrays of `outputs` for these rows, with padding.
          batch: the rows.
          tokenizer: the tokenizer of the corpus.
        """
        return []


def joined(*parts: Terms) -> Terms:
    """Return terms and metrics of several parts together."""
    terms, metrics = zip(*parts)
    return {k: v for part in terms for k, v in part.items()}, {k: v for part in metrics for k, v in part.items()}
