"""Base class for objectives: the device side, traced by JAX. `bertjax.objectives.host` has the host side.

Training loop, evaluation and prediction use only the interface of these two classes. An objective is a frozen
dataclass: its fields are its settings, and all computations are pure functions of their arguments.
"""

import dataclasses
import functools
from collections.abc import Collection
from typing import Any, cast, final

import jax

from bertjax.config.registry import Union
from bertjax.models import mixing
from bertjax.models.config import EncoderConfig
from bertjax.models.flops import FlopsPart
from bertjax.models.model import HeadSpec, Model
from bertjax.objectives import KINDS
from bertjax.objectives.host import Host, Output
from bertjax.objectives.losses import Sums
from bertjax.runtime.setting import check

Arrays = dict[str, jax.Array]
Key = jax.Array | None
# ({term: S}, {metric: (sum, weight)}), scalars.
Terms = tuple[Arrays, dict[str, Sums]]
# {encoder path: masks}, see `bertjax.models.taps`.
Taps = dict[str, Any] | None


# Not where it is defined: the host side is read without JAX.
jax.tree_util.register_dataclass(Output)


@dataclasses.dataclass(frozen=True)
class Objective(Host):
    """A prediction task. Subclasses must define `heads`, `logits`, `features`, `weights` and `terms_of`."""

    def __post_init__(self):
        check(self, "objective")

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

    def logits(self, model: Model, batch: Arrays, key: Key = None) -> Any:
        """Compute everything that the terms need, using `model.encode` and `model.head`; no dropout without a key."""
        raise TypeError(f"{type(self).__name__} has no logits()")

    @final
    def apply(
        self, model: Model, params: dict, batch: Arrays, key: Key = None, method: Any = None, taps: Taps = None
    ) -> Any:
        """Apply `logits`, or another method with the same arguments, with these parameters."""
        variables = {"params": params} | ({"taps": taps} if taps else {})
        apply = functools.partial(mixing.apply, model) if model.reads_all_layers else model.apply
        return apply(variables, batch, key, method=method or self.logits)

    def weights(self, batch: Arrays) -> Arrays:
        """Return {term: W}, the scalar normalizer of each term's sum. It depends only on the batch."""
        raise TypeError(f"{type(self).__name__} has no weights()")

    def terms_of(self, logits: Any, batch: Arrays) -> Terms:
        """Return terms and metrics computed from the result of `logits`."""
        raise TypeError(f"{type(self).__name__} has no terms_of()")

    def terms(
        self, model: Model, params: dict, frozen: dict | None, batch: Arrays, key: Key, train: bool, taps: Taps = None
    ) -> Terms:
        """Return ({term: S}, {metric: (sum, weight)}). The loss is the sum of weight * S / W over terms.

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
        """Return {term: loss weight}; unlisted terms have 1.

        Args:
          terms: names of all terms.
          step: training step, counted from 0, for weights that change during the run.
        """
        return {}

    def outputs(self, model: Model, params: dict, batch: Arrays, taps: Taps = None) -> dict[str, Output]:
        """Return the model's predictions per example, token, pair or row."""
        return {}

    def soft_logits(self, logits: Any, batch: Arrays) -> jax.Array:
        """Select, from the result of `logits`, the logits [..., C] that a student compares with its teacher's."""
        raise TypeError(f"{type(self).__name__} has no soft_logits()")

    def soft_weights(self, batch: Arrays) -> jax.Array:
        """Return the weight of each prediction in `soft_logits`, float32 [...]; labels are not needed."""
        raise TypeError(f"{type(self).__name__} has no soft_weights()")

    def flops_parts(self, config: EncoderConfig) -> tuple[FlopsPart, ...]:
        """Return the FLOPs of a step by encoder, the trained one first; by default those of one without a head."""
        return (FlopsPart(config),)


def joined(*parts: Terms) -> Terms:
    """Merge terms and metrics from several parts."""
    terms, metrics = zip(*parts)
    return {k: v for part in terms for k, v in part.items()}, {k: v for part in metrics for k, v in part.items()}


OBJECTIVES = Union("objective", Objective, default="bert", kinds=KINDS)
