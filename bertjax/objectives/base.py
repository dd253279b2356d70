"""Base class for objectives: the prediction task and its scores.

Training loop, evaluation and prediction use only the interface declared in `Objective`, and the optional methods in
`bertjax.objectives.optional`. An objective is a frozen dataclass: its fields are its settings, and all computations are
pure functions of their arguments.
"""

import copy
import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Self, cast, final

import jax
import numpy as np
from jax.sharding import PartitionSpec

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import Record
from bertjax.models import mixing
from bertjax.models.config import EncoderConfig
from bertjax.models.model import HeadSpec, Model
from bertjax.objectives.losses import Sums
from bertjax.objectives.optional import check_methods
from bertjax.objectives.outputs import Output
from bertjax.runtime.setting import check

Arrays = dict[str, jax.Array]
Key = jax.Array | None
# ({term: S}, {metric: (sum, weight)}), scalars.
Terms = tuple[Arrays, dict[str, Sums]]
# {encoder path: masks}, see `bertjax.models.taps`.
Taps = dict[str, Any] | None


@dataclasses.dataclass(frozen=True)
class Traits:
    """Facts about an objective that data, training and evaluation need to know.

    Attributes:
      labels: names of the labels that `features` reads; the examples must carry them.
      text_term: the term whose loss is that of predicted text tokens, in nats; empty if there is none.
      tuned_settings: settings that an evaluation chooses if they are None; it reports them as metrics.
      untuned: {tuned setting: number that predictions use if it is None}; predictions do without the others.
      needs_global_batch: whether terms compare examples across the batch, so that micro-batches would change them.
      trains_words_alone: the setting that keeps steps of other tasks from training words; empty if there is none.
      needs_dropout: whether terms compare two views of a text that differ only by dropout.
      group: number of neighboring slots in a row that hold related examples; N is a multiple of it.
      sharding_rules: (path regex, spec) for parameters outside `encoder`; heads without a rule are replicated.
    """

    labels: tuple[str, ...] = ()
    text_term: str = ""
    tuned_settings: tuple[str, ...] = ()
    untuned: Mapping[str, float] = dataclasses.field(default_factory=dict)
    needs_global_batch: bool = False
    trains_words_alone: str = ""
    needs_dropout: bool = False
    group: int = 1
    sharding_rules: Sequence[tuple[str, PartitionSpec]] = ()


@dataclasses.dataclass(frozen=True)
class Objective:
    """A prediction task. Subclasses must define `heads`, `logits`, `features`, `weights` and `terms_of`.

    Everything else has defaults. "Host" methods work on numpy arrays, "device" methods are traced by JAX.

    Attributes:
      traits: see `Traits`; a property if it depends on settings.
      best_metric: metric that selects the best checkpoint, a score, `<term>_loss` or `<term>_bits_per_byte`.
      classes: predicted class names, in order; a field if the classes come from the training file.
    """

    traits: ClassVar[Traits] = Traits()
    best_metric: ClassVar[str] = ""
    classes: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self):
        check(self, "objective")

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        check_methods(cls)

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        """Return {name: head}. If two tasks in a mixture use the same head name, they share its parameters."""
        raise TypeError(f"{type(self).__name__} has no heads()")

    def model(self, config: EncoderConfig) -> Model:
        """Return the Flax module. Its parameter roots are `encoder`, `heads/<name>`, ..."""
        return Model(config, self.heads(config))

    def init(self, model: Model, key: jax.Array, batch: dict[str, Any]) -> dict:
        """Return initial parameters. Only the batch's shapes matter."""
        # Shapes are enough for `lazy_init`, so initialization does not run the forward pass.
        shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in batch.items()}
        return cast(dict, model.lazy_init(key, shapes, method=self.logits)["params"])

    def frozen_params(self, config: EncoderConfig) -> dict | None:
        """Return what terms read and nothing trains, for a stage; those of the last stage are part of the identity."""
        return None

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Host: return fixed-shape arrays that extend the core batch or replace some of its arrays.

        Values that depend on `draw.step`, such as an annealed temperature, are features too.
        """
        raise TypeError(f"{type(self).__name__} has no features()")

    def logits(self, model: Model, batch: Arrays, key: Key = None) -> Any:
        """Device: compute everything that the terms need, using `model.encode` and `model.head`.

        Args:
          model: the bound model.
          batch: core batch and features.
          key: dropout key; None for no dropout.
        """
        raise TypeError(f"{type(self).__name__} has no logits()")

    @final
    def apply(
        self, model: Model, params: dict, batch: Arrays, key: Key = None, method: Any = None, taps: Taps = None
    ) -> Any:
        """Device: apply `logits`, or another method with the same arguments, with these parameters."""
        variables = {"params": params} | ({"taps": taps} if taps else {})
        apply = functools.partial(mixing.apply, model) if model.reads_all_layers else model.apply
        return apply(variables, batch, key, method=method or self.logits)

    def weights(self, batch: Arrays) -> Arrays:
        """Device: return {term: W}, the scalar normalizer of each term's sum. It depends only on the batch."""
        raise TypeError(f"{type(self).__name__} has no weights()")

    def terms_of(self, logits: Any, batch: Arrays) -> Terms:
        """Device: return terms and metrics computed from the result of `logits`."""
        raise TypeError(f"{type(self).__name__} has no terms_of()")

    def terms(
        self, model: Model, params: dict, frozen: dict | None, batch: Arrays, key: Key, train: bool, taps: Taps = None
    ) -> Terms:
        """Device: return ({term: S}, {metric: (sum, weight)}). The loss is the sum of weight * S / W over terms.

        Args:
          model: the module returned by `model`.
          frozen: parameters from `frozen_params`, never updated; also holds `slots`, if the objective has any.
          batch: core batch and features, batch axis first.
          key: for dropout and other random draws on the device.
          train: whether dropout applies.
          taps: masks on heads and feed-forward channels, differentiable like `params`.

        An objective with state that crosses steps may return a third value (`bertjax.objectives.slots`).
        """
        return self.terms_of(self.apply(model, params, batch, key if train else None, taps=taps), batch)

    def loss_weights(self, terms: Collection[str], step: jax.Array | int) -> dict[str, float | jax.Array]:
        """Device: return {term: loss weight}; unlisted terms have 1.

        Args:
          terms: names of all terms.
          step: training step, counted from 0, for weights that change during the run.
        """
        return {}

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

    @final
    def copy_with(self, **values: Any) -> Self:
        """Return a copy with other settings, or with attributes that are not settings, such as a loaded lexicon."""
        # dataclasses.replace would drop attributes that are not fields, and frozen dataclasses need object.__setattr__.
        changed = copy.copy(self)
        for name, value in values.items():
            object.__setattr__(changed, name, value)
        return changed


def joined(*parts: Terms) -> Terms:
    """Merge terms and metrics from several parts."""
    terms, metrics = zip(*parts)
    return {k: v for part in terms for k, v in part.items()}, {k: v for part in metrics for k, v in part.items()}
