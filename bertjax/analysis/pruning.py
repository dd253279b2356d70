"""Pruning order of heads or neurons, and how much can be pruned (Michel et al., 2019, section 4)."""

from collections.abc import Callable, Sequence

import numpy as np

from bertjax.models.importance import normalized

# Pruned shares of heads or neurons, as in figure 3 of the paper.
SHARES = tuple(tenths / 10 for tenths in range(11))
# A model keeps its score if it loses at most this fraction of it.
TOLERATED = 0.1


def least_first(*keys: np.ndarray) -> np.ndarray:
    """Return indices of the flattened entries, lowest first; int64.

    Args:
      keys: arrays of one shape. Ties in the first are broken by the next, then by index.
    """
    # `lexsort` sorts by its last key first, hence `reversed`.
    return np.lexsort([key.ravel() for key in reversed(keys)])


def mask_without(shape: tuple[int, int], pruned: Sequence[int]) -> np.ndarray:
    """Return a float32 mask [L, ...] with 0 at these flat indices and 1 elsewhere."""
    mask = np.ones(int(np.prod(shape)), np.float32)
    mask[np.asarray(pruned, np.int64)] = 0.0
    return mask.reshape(shape)


def in_order(shape: tuple[int, int], order: np.ndarray) -> list[np.ndarray]:
    """Return one mask per entry of `SHARES`, pruning in a fixed order."""
    return [mask_without(shape, order[: round(share * len(order))]) for share in SHARES]


def by_importance(
    shape: tuple[int, int], importance_of: Callable[[np.ndarray], np.ndarray]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return one mask per entry of `SHARES` and the pruning order, with importance computed again at each share.

    The least important remaining entries are pruned first. Importance is divided by its layer's norm, pruned entries
    included.

    Args:
      shape: [L, H] or [L, F].
      importance_of: maps a mask [L, ...] to the importance [L, ...] of all entries.
    """
    total = int(np.prod(shape))
    pruned, masks = np.empty(0, np.int64), []
    for share in SHARES:
        if (count := round(share * total)) > len(pruned):
            # Pruning changes what the others are worth, so importance is measured on the pruned model, not once.
            order = least_first(normalized(importance_of(masks[-1])))
            left = order[~np.isin(order, pruned)]
            pruned = np.concatenate([pruned, left[: count - len(pruned)]])
        masks.append(mask_without(shape, pruned))
    return masks, pruned


def kept_up_to(scores: Sequence[float]) -> float:
    """Return the largest of `SHARES` up to which the model keeps its score.

    Args:
      scores: score at each of `SHARES`, higher is better.
    """
    lost = np.asarray(scores) < scores[0] - TOLERATED * abs(scores[0])
    # `argmax` finds the first loss; the appended True stands for a score that is never lost.
    return SHARES[int(np.argmax(np.append(lost, True))) - 1]
