"""MinHash text signatures (Broder 1997): similar texts share a bucket with a known probability."""

import hashlib
from collections.abc import Sequence

import numpy as np

from bertjax.data.config import NearDuplicates
from bertjax.data.text import ngrams

# n-grams that are hashed at once: few enough that hashes and products stay in the cache of a core.
GRAMS_AT_ONCE = 1 << 15


def buckets(texts: Sequence[str], settings: NearDuplicates) -> np.ndarray:
    """Return a hash per text and bucket, uint64 [D, buckets]. Near-duplicates share at least one bucket.

    A bucket hashes `hashes` minima. Each minimum is taken over the text's n-grams after another 32-bit permutation:
    x -> a x + b modulo 2**32 with odd a. Two texts have an equal minimum with a probability that is the Jaccard
    similarity between their n-gram sets. A text without words is similar only to itself.
    """
    words, counts_D = ngrams.word_hashes(texts)
    grams, grams_D = ngrams.ngram_hashes(words, counts_D, settings.ngram)
    minima_DN = _minima((grams >> np.uint64(32)).astype(np.uint32), grams_D, settings.buckets * settings.hashes)
    minima_DBH = minima_DN.reshape(len(texts), settings.buckets, settings.hashes)
    result = np.zeros((len(texts), settings.buckets), np.uint64)
    for h in range(settings.hashes):
        # Chained, so a bucket depends on all of its minima: two texts share it only if all are equal.
        result = ngrams.mix(result ^ minima_DBH[:, :, h])
    # Their minima are all 0, so texts without words would form one big cluster.
    for d in np.flatnonzero(grams_D == 0):
        result[d] = int.from_bytes(hashlib.sha256(texts[d].encode()).digest()[:8], "little")
    return result


def _minima(grams: np.ndarray, grams_D: np.ndarray, hashes: int) -> np.ndarray:
    """Return minima by hash function over each text's n-grams: uint32 [D, hashes]."""
    # Fixed constants: signatures must be comparable between processes and runs.
    constants = ngrams.mix(np.arange(1, 2 * hashes + 1, dtype=np.uint64)).astype(np.uint32)
    # An odd factor has an inverse modulo 2**32, so no two values collide.
    factors, offsets = constants[:hashes] | np.uint32(1), constants[hashes:]
    minima = np.zeros((len(grams_D), hashes), np.uint32)
    ends_D = np.cumsum(grams_D)
    # Without empty texts: for an empty range `reduceat` returns an element of the next text.
    filled = np.flatnonzero(grams_D)
    first = 0
    while first < len(filled):
        # As many texts as fit into GRAMS_AT_ONCE, or a single longer one.
        start = ends_D[filled[first]] - grams_D[filled[first]]
        after = max(first + 1, int(np.searchsorted(ends_D[filled], start + GRAMS_AT_ONCE, side="right")))
        block = filled[first:after]
        starts = ends_D[block] - grams_D[block] - start
        here = grams[start : ends_D[block[-1]]]
        permuted = np.empty_like(here)
        for h in range(hashes):
            # Overflow is the modulo 2**32; numpy does not warn about it for arrays.
            np.multiply(here, factors[h], out=permuted)
            np.add(permuted, offsets[h], out=permuted)
            minima[block, h] = np.minimum.reduceat(permuted, starts)
        first = after
    return minima
