"""State of an objective that crosses steps: an EMA of the params, a queue of earlier vectors, running statistics."""

import abc
from typing import Any

import jax

from bertjax.objectives.base import Arrays

# {name: a tree of arrays}.
SlotValues = dict[str, Any]


class Slots(abc.ABC):
    """What an objective adds to the training state: `class Momentum(Slots, MaskedLM)`.

    Slots are saved, restored, fingerprinted and sharded like params. Nothing trains them, and an export leaves them
    out. The terms read them as `frozen["slots"]`, and may return {name: array [B, ...]} after terms and metrics, which
    `update_slots` reads. In an evaluation, `frozen["slots"]` is what `init_slots` returns for the evaluated params.
    """

    @abc.abstractmethod
    def init_slots(self, params: dict) -> SlotValues:
        """Device: return the slots at step 0, of fixed shapes.

        Args:
          params: initial params; a slot may be a copy of some.
        """

    @abc.abstractmethod
    def update_slots(self, slots: SlotValues, params: dict, kept: Arrays) -> SlotValues:
        """Device: return the slots after a step, of the same shapes and dtypes.

        Args:
          slots: those before the step.
          params: the params after it.
          kept: the third value of `terms`, with the rows of the whole batch in their order; {} if there is none.
        """


def slots_of(objective: object, params: dict) -> SlotValues:
    """Return the slots of an objective at step 0; {} for an objective without slots."""
    return jax.tree.map(jax.numpy.copy, objective.init_slots(params)) if isinstance(objective, Slots) else {}


def with_slots(frozen: dict | None, slots: SlotValues) -> dict | None:
    """Return frozen parameters and slots as the terms read them."""
    return (frozen or {}) | {"slots": slots} if slots else frozen
