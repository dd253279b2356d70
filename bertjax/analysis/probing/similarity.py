"""Similarity of hidden states: contextuality of words, and CKA of layers.

**Contextuality** of word vectors: how much they depend on context (Ethayarajh, 2019, section 3, arXiv 1909.00512).
Words whose vectors all point in about the same direction look similar whatever they mean. Each measure is therefore
adjusted by subtracting its value for words drawn from different sentences (section 3.4). As in the published code
(kawine/contextual), variance is taken around the mean, and the random words are one per sentence.

The measures read a sample of bounded size, which is drawn before anything is computed.

**Linear CKA**: similarity between two representations of the same words. CKA is 1 if the representations differ by a
rotation and a factor, whatever their widths (Kornblith et al., 2019, arXiv 1905.00414). HSIC is estimated without bias
(Song et al., 2012, equation 5), so its mean over minibatches estimates HSIC on all words (Nguyen et al., 2021, section
3.1, arXiv 2010.15327). The usual biased estimate is near 1 for any two representations with more dimensions than words.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary

# Sample sizes. A word counts if at least `_CONTEXTS` sentences contain it, as in the paper (section 3.1).
_CONTEXTS, _TYPES, _OCCURRENCES, _SENTENCES, _RANDOM = 5, 300, 16, 200, 1000


@dataclasses.dataclass(frozen=True)
class Sample:
    """Words that the measures read.

    Attributes:
      tokens: int64 [n], index of each word's first piece among all tokens, ascending.
      types: int64 [n], word type of each occurrence, -1 for none.
      sentences: int64 [n], sentence that a word counts for, -1 for none.
      is_random: bool [n], marks one word in each of many sentences.
    """

    tokens: np.ndarray
    types: np.ndarray
    sentences: np.ndarray
    is_random: np.ndarray


def sample(ragged: Ragged, vocabulary: Vocabulary, seed: int) -> Sample:
    """Draw the words that `measure` reads.

    The first piece represents a word. Only one-piece words are compared across occurrences, and the piece is the word
    type. Each occurrence of a type is in a different example.
    """
    random = np.random.default_rng(seed)
    starts = np.flatnonzero(word_starts(ragged, vocabulary))
    types, sentences, is_random = (np.full(len(ragged.tokens), fill, np.int64) for fill in (-1, -1, 0))

    # Words of several pieces are left out: their first piece is shared with other words.
    is_continued = np.append(vocabulary.continues_word[ragged.tokens[1:]] & ~ragged.special[1:], False)
    whole = starts[~is_continued[starts]]
    whole = random.permutation(whole)
    _, first = np.unique(np.stack([ragged.tokens[whole], ragged.token_examples[whole]]), axis=1, return_index=True)
    whole = whole[np.sort(first)]  # one occurrence of a type in an example
    ids, counts = np.unique(ragged.tokens[whole], return_counts=True)
    for number, token in enumerate(random.permutation(ids[counts >= _CONTEXTS])[:_TYPES]):
        types[whole[ragged.tokens[whole] == token][:_OCCURRENCES]] = number

    # `unique` returns first indices, so shuffling first picks a random word in each example.
    order = random.permutation(starts)
    examples, first = np.unique(ragged.token_examples[order], return_index=True)
    chosen = random.permutation(len(examples))
    is_random[order[first[chosen[:_RANDOM]]]] = 1
    sentence_of = np.full(len(ragged.ids), -1, np.int64)
    sentence_of[examples[chosen[:_SENTENCES]]] = np.arange(len(chosen[:_SENTENCES]))
    sentences[starts] = sentence_of[ragged.token_examples[starts]]

    tokens = np.flatnonzero((types >= 0) | (sentences >= 0) | (is_random > 0))
    return Sample(tokens, types[tokens], sentences[tokens], is_random[tokens] > 0)


def word_starts(ragged: Ragged, vocabulary: Vocabulary) -> np.ndarray:
    """Return whether each token is the first piece of a word; bool [n]."""
    return ~ragged.special & ~vocabulary.continues_word[ragged.tokens]


def contextuality(states: np.ndarray, words: Sample) -> dict[str, float]:
    """Return the measures for one layer by name; a measure is NaN if the sample has no words for it.

    `self_similarity`: mean cosine between two occurrences of a word, averaged over word types.
    `intra_sentence_similarity`: mean cosine between a word and its sentence mean, averaged over sentences.
    `explained_variance`: variance share along the first principal component of a word's vectors, averaged over word
    types; it bounds what one static vector could explain. `anisotropy`: mean cosine between words from different
    sentences, which adjusts both similarities. `random_variance`: `explained_variance` for these words, which adjusts
    that measure. `adjusted_...`: the first three minus their baselines.

    Args:
      states: float [n, D], the states of `words.tokens`.
      words: the sample.
    """
    states = states.astype(np.float64)
    by_type = [states[words.types == number] for number in range(words.types.max(initial=-1) + 1)]
    by_sentence = [states[words.sentences == number] for number in range(words.sentences.max(initial=-1) + 1)]
    drawn = states[words.is_random]
    anisotropy, random_variance = mean_cosine(drawn), explained_variance(drawn)
    measures = {
        "self_similarity": (_mean([mean_cosine(part) for part in by_type]), anisotropy),
        "intra_sentence_similarity": (_mean([_cosine_to_mean(part) for part in by_sentence]), anisotropy),
        "explained_variance": (_mean([explained_variance(part) for part in by_type]), random_variance),
    }
    values = {name: value for name, (value, _) in measures.items()}
    values |= {"anisotropy": anisotropy, "random_variance": random_variance}
    return values | {f"adjusted_{name}": value - baseline for name, (value, baseline) in measures.items()}


def mean_cosine(vectors: np.ndarray) -> float:
    """Return the mean cosine over pairs of different vectors in [n, D]; NaN for fewer than two vectors."""
    count = len(vectors)
    if count < 2:
        return float("nan")
    # |sum of unit vectors|^2 is the sum of all cosines, n of them 1 on the diagonal: O(n D) instead of O(n^2 D).
    total = _unit(vectors).sum(axis=0)
    return float((total @ total - count) / (count * (count - 1)))


def explained_variance(vectors: np.ndarray) -> float:
    """Return the variance share along the first principal component of vectors [n, D].

    It is NaN for fewer than two vectors, and for equal vectors, which have no variance to explain.
    """
    centered = vectors - vectors.mean(axis=0) if len(vectors) > 1 else np.zeros((1, 1))
    # Both products have the same nonzero eigenvalues; take the smaller matrix.
    gram = centered @ centered.T if len(centered) < centered.shape[1] else centered.T @ centered
    total = np.trace(gram)
    floor = np.finfo(np.float32).eps ** 2 * np.sum(vectors**2)  # states are float32
    return float(np.linalg.eigvalsh(gram)[-1] / total) if total > floor else float("nan")


def _cosine_to_mean(vectors: np.ndarray) -> float:
    return float(np.mean(_unit(vectors) @ _unit(vectors.mean(axis=0, keepdims=True))[0]))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), np.finfo(np.float64).tiny)


def _mean(values: list[float]) -> float:
    """Return the mean of the values that are not NaN."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


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
