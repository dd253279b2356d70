"""Objective state that persists across steps, such as an EMA of params, a vector queue or running statistics."""

import abc
from typing import Any

import jax

from bertjax.objectives.base import Arrays

# {name: a tree of arrays}.
SlotValues = dict[str, Any]


class Slots(abc.ABC):
    """Mixin for objectives that add to the training state: `class Momentum(Slots, MaskedLM)`.

    Slots are saved, restored, fingerprinted and sharded like params, but not trained and not exported. Terms read them
    as `frozen["slots"]` and may return {name: array [B, ...]} as a third value, which is passed to `update_slots`. In
    an evaluation, `frozen["slots"]` is the result of `init_slots` for the evaluated params.
    """

    @abc.abstractmethod
    def init_slots(self, params: dict) -> SlotValues:
        """Device: return the slots at step 0; their shapes never change.

        Args:
          params: initial params; a slot may be a copy of some.
        """

    @abc.abstractmethod
    def update_slots(self, slots: SlotValues, params: dict, kept: Arrays) -> SlotValues:
        """Device: return the slots after a step, with unchanged shapes and dtypes.

        Args:
          slots: slots before the step.
          params: params after the step.
          kept: third value of `terms`, with the rows of the whole batch in order; {} if there is none.
        """


def slots_of(objective: object, params: dict) -> SlotValues:
    """Return an objective's slots at step 0; {} for an objective without slots."""
    return jax.tree.map(jax.numpy.copy, objective.init_slots(params)) if isinstance(objective, Slots) else {}


def with_slots(frozen: dict | None, slots: SlotValues) -> dict | None:
    """Return frozen parameters and slots combined, as the terms read them."""
    return (frozen or {}) | {"slots": slots} if slots else frozen
