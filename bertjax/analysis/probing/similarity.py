"""Linear CKA: similarity between two representations of the same words.

CKA is 1 if the representations differ by a rotation and a factor, whatever their widths (Kornblith et al., 2019, arXiv
1905.00414). HSIC is estimated without bias (Song et al., 2012, equation 5), so its mean over minibatches estimates HSIC
on all words (Nguyen et al., 2021, section 3.1, arXiv 2010.15327). The usual biased estimate is near 1 for any two
representations with more dimensions than words.
"""

from collections.abc import Iterable

import numpy as np

# Words per minibatch.
WORDS = 256


def centered_grams(states: np.ndarray) -> np.ndarray:
    """Return one centered Gram matrix per layer; float32 [L, n, n].

    The inner product of two such matrices, divided by n (n - 3), is the unbiased HSIC. This is U-centering (Szekely &
    Rizzo, 2014, section 2.2), applied to dot products between different words.

    Args:
      states: float [n, L, D], n words, at least 4.
    """
    count = len(states)
    states = np.moveaxis(states, 1, 0).astype(np.float64)
    states = states - states.mean(axis=1, keepdims=True)  # affects rounding only
    grams = states @ np.swapaxes(states, 1, 2)
    off_diagonal = 1 - np.eye(count)
    # The unbiased estimate leaves out products of a word with itself.
    grams *= off_diagonal
    sums = grams.sum(axis=2) / (count - 2)
    totals = grams.sum(axis=(1, 2)) / ((count - 1) * (count - 2))
    return ((grams - sums[:, :, None] - sums[:, None, :] + totals[:, None, None]) * off_diagonal).astype(np.float32)


def grams_of(states: np.ndarray) -> list[np.ndarray]:
    """Return centered Gram matrices for minibatches of `WORDS` words; a last one with fewer than 4 words is dropped.

    CKA needs nothing else from a model: D does not matter, and models need not be in memory together.

    Args:
      states: float [n, L, D], words in random order.
    """
    starts = range(0, len(states), WORDS)
    return [centered_grams(states[start : start + WORDS]) for start in starts if len(states) - start >= 4]


def cka(first: Iterable[np.ndarray], second: Iterable[np.ndarray]) -> np.ndarray:
    """Return the CKA between all layer pairs of two models, on the same words; float64 [L, L'].

    Args:
      first, second: results of `grams_of`. HSIC is averaged over minibatches before the division.
    """
    cross = norms_first = norms_second = 0.0
    for a, b in zip(first, second, strict=True):
        count = a.shape[-1]
        a, b = (grams.reshape(len(grams), -1).astype(np.float64) for grams in (a, b))
        scale = 1 / (count * (count - 3))
        cross = cross + a @ b.T * scale
        norms_first = norms_first + np.sum(a * a, axis=1) * scale
        norms_second = norms_second + np.sum(b * b, axis=1) * scale
    return cross / np.sqrt(np.outer(norms_first, norms_second))
