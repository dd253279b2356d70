"""Base class for objectives: the prediction task and its scores.

Training loop, evaluation and prediction use only the interface declared in `Objective`. An objective is a frozen
dataclass: its fields are its settings, and all computations are pure functions of their arguments.
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
# {encoder path: masks}, see `bertjax.models.taps`.
Taps = dict[str, Any] | None


@dataclasses.dataclass(frozen=True)
class Objective(Student):
    """A prediction task. Subclasses must define `heads`, `logits`, `features`, `weights` and `terms_of`.

    Everything else has defaults. "Host" methods work on numpy arrays, "device" methods are traced by JAX.

    Attributes:
      labels: names of the labels that `features` reads; the examples must carry them.
      best_metric: metric that selects the best checkpoint, a score, `<term>_loss` or `<term>_bits_per_byte`.
      text_term: the term whose loss is that of predicted text tokens, in nats; empty if there is none.
      tuned_settings: settings that an evaluation tunes while they are None, and reports as metrics.
      classes: predicted class names, in order; a field if the classes come from the training file.
      needs_global_batch: whether terms compare examples across the batch, so that micro-batches would change them.
      needs_dropout: whether terms compare two views of a text that differ only by dropout.
      reads_all_layers: whether heads read all encoder layers (`bertjax.models.mixing`).
      group: number of neighboring slots in a row that hold related examples; N is a multiple of it.
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
        """Return {name: head}. If two tasks in a mixture use the same head name, they share its parameters."""
        raise TypeError(f"{type(self).__name__} has no heads()")

    def generator(self, config: EncoderConfig) -> EncoderConfig | None:
        """Return the architecture of a second encoder on the same embeddings, or None."""
        return None

    def logits(self, model: Model, batch: Arrays, key: Key = None) -> Any:
        """Device: compute everything that the terms need, using `model.encode` and `model.head`.

        Args:
          model: the bound model.
          batch: core batch and features.
          key: dropout key; None for no dropout.
        """
        raise TypeError(f"{type(self).__name__} has no logits()")

    def model(self, config: EncoderConfig) -> Model:
        """Return the Flax module. Its parameter roots are `encoder`, `heads/<name>`, ..."""
        return Model(config, self.heads(config), self.generator(config), computes_all=self.captures)

    def init(self, model: Model, key: jax.Array, batch: dict[str, Any]) -> dict:
        """Return initial parameters. Only the batch's shapes matter."""
        # Shapes are enough for `lazy_init`, so initialization does not run the forward pass.
        shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in batch.items()}
        params = model.lazy_init(key, shapes, method=self.logits)["params"]
        return params | self.projections(model.config, key)

    def apply(
        self, model: Model, params: dict, batch: Arrays, key: Key = None, method: Any = None, taps: Taps = None
    ) -> Any:
        """Device: apply `logits`, or another method with the same arguments, with these parameters."""
        variables = {"params": params} | ({"taps": taps} if taps else {})
        return apply(model, variables, batch, key, method=method or self.logits, with_layers=self.reads_all_layers)

    def bind(self, store: TokenStore | None) -> Self:
        """Host: return the objective with additional resources that `features` reads, such as a lexicon.

        Without a store, the resources are empty but have the same types, which is enough to get feature shapes.
        """
        return self

    @property
    def fingerprints(self) -> dict[str, str]:
        """{resource loaded by `bind`: its fingerprint}; part of the run's identity."""
        return {}

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Host: return fixed-shape arrays that extend the core batch or replace some of its arrays.

        Values that depend on `draw.step`, such as an annealed temperature, are features too.
        """
        raise TypeError(f"{type(self).__name__} has no features()")

    def weights(self, batch: Arrays) -> Arrays:
        """Device: return {term: W}, the scalar normalizer of each term's sum. It depends only on the batch."""
        raise TypeError(f"{type(self).__name__} has no weights()")

    def terms_of(self, logits: Any, batch: Arrays) -> Terms:
        """Device: return terms and metrics computed from the result of `logits`."""
        raise TypeError(f"{type(self).__name__} has no terms_of()")

    def terms(
        self, model: Model, params: dict, frozen: dict | None, batch: Arrays, key: Key, train: bool, taps: Taps = None
    ) -> Terms:
        """Device: return ({term: S}, {metric: (sum, weight)}). The loss is the sum of coefficient * S / W over terms.

        Args:
          model: the module returned by `model`.
          frozen: parameters from `frozen_params`, never updated; also holds `slots`, if the objective has any.
          batch: core batch and features, batch axis first.
          key: for dropout and other random draws on the device.
          train: whether dropout applies.
          taps: masks on heads and feed-forward channels, differentiable like `params`.

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
        """{term: loss weight}; unlisted terms have 1."""
        return {}

    def coefficients_at(self, step: jax.Array) -> dict[str, float | jax.Array]:
        """Device: return the `coefficients` for a training step (counted from 0), if they change during the run."""
        return self.coefficients

    def flops_parts(self, config: EncoderConfig) -> tuple[FlopsPart, ...]:
        """Return the FLOPs of a step by encoder, the trained one first; by default it has no head."""
        return (FlopsPart(config),)

    @property
    def sharding_rules(self) -> Sequence[tuple[str, PartitionSpec]]:
        """(path regex, spec) for parameters outside `encoder`; heads without a rule are replicated."""
        return ()

    def outputs(self, model: Model, params: dict, batch: Arrays, taps: Taps = None) -> dict[str, Output]:
        """Device: return the model's predictions per example, token, pair or row."""
        return {}

    def score(self, outputs: dict[str, np.ndarray], examples: Ragged, records: list[Record]) -> dict[str, float]:
        """Host: return metrics that are not sums (F1, correlations), over all examples of an evaluation at once.

        Args:
          outputs: arrays from `outputs` without rows and padding (`regroup`): [M, ...] per example, [tokens of all M
            examples, ...] per token, [M / 2, ...] per pair.
          examples: the M examples, in the same order.
          records: each example's record in a labeled file; empty for a token store.
        """
        return {}

    def predictions(self, outputs: dict[str, np.ndarray], examples: Ragged, records: list[Record]) -> list[Record]:
        """Host: return each record with its prediction, as plain JSON. Arguments as in `score`.

        Examples made from the same record are combined into one prediction.
        """
        return []

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
        return {}

    def samples(self, outputs: dict[str, np.ndarray], batch: dict[str, np.ndarray], tokenizer) -> list[Sample]:
        """Host: return rows with the model's guesses, for people to read.

        Args:
          outputs: arrays from `outputs` for these rows, with padding.
          batch: the rows.
          tokenizer: the corpus tokenizer.
        """
        return []


def joined(*parts: Terms) -> Terms:
    """Merge terms and metrics from several parts."""
    terms, metrics = zip(*parts)
    return {k: v for part in terms for k, v in part.items()}, {k: v for part in metrics for k, v in part.items()}
