"""The order in which heads or neurons are pruned, and what is left of a score (Michel et al., 2019, section 4)."""

from collections.abc import Callable, Sequence

import numpy as np

from bertjax.importance import normalized

# Shares of all heads or neurons that are off, as in figure 3 of the paper.
SHARES = tuple(tenths / 10 for tenths in range(11))
# A model keeps its score if it loses at most this share of it.
TOLERATED = 0.1


def least_first(*keys: np.ndarray) -> np.ndarray:
    """Return the indices of the flattened entries, lowest first; int64.

    Args:
      keys: arrays of one shape; entries equal in the first are ordered by the next, then by their index.
    """
    return np.lexsort([key.ravel() for key in reversed(keys)])


def mask_without(shape: tuple[int, int], pruned: Sequence[int]) -> np.ndarray:
    """Return a mask [L, ...] that is 0 at these flat indices and 1 elsewhere; float32."""
    mask = np.ones(int(np.prod(shape)), np.float32)
    mask[np.asarray(pruned, np.int64)] = 0.0
    return mask.reshape(shape)


def in_order(shape: tuple[int, int], order: np.ndarray) -> list[np.ndarray]:
    """Return the mask at each of `SHARES` when the entries are pruned in one order."""
    return [mask_without(shape, order[: round(share * len(order))]) for share in SHARES]


def by_importance(
    shape: tuple[int, int], importance_of: Callable[[np.ndarray], np.ndarray]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the mask at each of `SHARES` and the order, by an importance that is computed again at each share.

    Of the entries that are on, those with the lowest importance are pruned first. It is divided by the norm of its
    layer, the entries that are off included.

    Args:
      shape: [L, H] or [L, F].
      importance_of: the importance [L, ...] of all entries with a mask [L, ...].
    """
    total = int(np.prod(shape))
    pruned, masks = np.empty(0, np.int64), []
    for share in SHARES:
        if (count := round(share * total)) > len(pruned):
            order = least_first(normalized(importance_of(masks[-1])))
            left = order[~np.isin(order, pruned)]
            pruned = np.concatenate([pruned, left[: count - len(pruned)]])
        masks.append(mask_without(shape, pruned))
    return masks, pruned


def kept_up_to(scores: Sequence[float]) -> float:
    """Return the largest of `SHARES` up to which a model keeps its score.

    Args:
      scores: the score at each of `SHARES`, higher is better.
    """
    lost = np.asarray(scores) < scores[0] - TOLERATED * abs(scores[0])
    return SHARES[int(np.argmax(np.append(lost, True))) - 1]
