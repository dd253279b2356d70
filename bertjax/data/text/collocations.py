"""Phrase mining: find word sequences that occur together far more often than by chance."""

import dataclasses

import numpy as np

from bertjax.data.examples import Vocabulary
from bertjax.data.random import uniform
from bertjax.data.store import Split
from bertjax.data.text.words import Words

LONGEST = 4  # words
MIN_COUNT = 5
THRESHOLD = 100.0
SAMPLE_TOKENS = 4_000_000
_BLOCKS = 1024
_SAMPLE_SEED = 0  # constant, because runs with any seed share a store


@dataclasses.dataclass(frozen=True)
class _Counts:
    """Occurrence counts for R distinct word n-grams with the same n.

    Attributes:
      hashes: uint64 [R], ascending.
      first: int64 [R], index of the word that starts the first occurrence.
      counts: int64 [R].
    """

    hashes: np.ndarray
    first: np.ndarray
    counts: np.ndarray

    def of(self, hashes: np.ndarray) -> np.ndarray:
        """Look up the counts for hashes that all occur; int64."""
        return self.counts[np.searchsorted(self.hashes, hashes)]


def collocations(split: Split, vocabulary: Vocabulary) -> list[np.ndarray]:
    """Return phrases with 2 to 4 words as token ids, best first. The same store always gives the same phrases.

    Two words score as in Mikolov et al. 2013 (section 4, arXiv 1310.4546), multiplied by the word count N:
    N * (count(ab) - delta) / (count(a) * count(b)). The discount delta keeps rare words from forming phrases. A longer
    sequence gets the minimum score over all ways to split it in two. As in word2phrase, the paper's program, a phrase
    needs at least MIN_COUNT occurrences (delta is the same number) and a score of at least THRESHOLD. Counting uses
    SAMPLE_TOKENS tokens, in blocks spread over the split.
    """
    tokens, boundary = _sample(split)
    words = Words.of(tokens, boundary, vocabulary)
    hashes = list(words.hashes(tokens, vocabulary.size, LONGEST))
    counts = []
    for length, hashes_of_length in enumerate(hashes, start=1):
        fits = np.flatnonzero(words.room >= length)
        known, first, occurrences = np.unique(hashes_of_length[fits], return_index=True, return_counts=True)
        counts.append(_Counts(known, fits[first], occurrences))

    scores, firsts, lengths = [], [], []
    for length in range(2, LONGEST + 1):
        frequent = counts[length - 1].counts >= MIN_COUNT
        first, together = counts[length - 1].first[frequent], counts[length - 1].counts[frequent]
        # A phrase is as strong as its weakest joint: "New York City" needs "New York" + "City" and "New" + "York City".
        score = np.full(len(first), np.inf)
        for left in range(1, length):
            apart = counts[left - 1].of(hashes[left - 1][first]).astype(float)
            apart *= counts[length - left - 1].of(hashes[length - left - 1][first + left])
            score = np.minimum(score, len(words.starts) * (together - MIN_COUNT) / apart)
        scores.append(score)
        firsts.append(first)
        lengths.append(np.full(len(first), length))
    score, first, length = map(np.concatenate, (scores, firsts, lengths))
    order = np.lexsort((length, first, -score))
    order = order[score[order] >= THRESHOLD]
    starts, last = words.starts[first[order]], (first + length - 1)[order]
    stops = words.starts[last] + words.lengths[last]
    return [tokens[start:stop] for start, stop in zip(starts, stops, strict=True)]


def _sample(split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Sample blocks from the whole split.

    Returns:
      Token ids (int32 [n]), and whether a sentence or a block starts at each token (bool [n]).
    """
    share = min(1.0, SAMPLE_TOKENS / len(split.tokens))
    blocks = _BLOCKS if share < 1.0 else 1
    edges = np.linspace(0, len(split.tokens), blocks + 1).astype(np.int64)
    lengths = (share * np.diff(edges)).astype(np.int64)
    slack = np.diff(edges) - lengths + 1
    starts = edges[:-1] + (uniform(_SAMPLE_SEED, "lexicon/sample", 0, np.arange(blocks), 0) * slack).astype(np.int64)
    tokens, boundary = [], []
    for start, stop in zip(starts, starts + lengths, strict=True):
        low, high = np.searchsorted(split.sentences, (start, stop))
        is_start = np.zeros(stop - start, bool)
        is_start[split.sentences[low:high] - start] = True
        is_start[:1] = True  # a block may start inside a sentence; no phrase may cross into the block before
        tokens.append(split.tokens[start:stop].astype(np.int32))
        boundary.append(is_start)
    return np.concatenate(tokens), np.concatenate(boundary)
