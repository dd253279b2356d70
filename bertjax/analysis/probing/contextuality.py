"""How much the vectors of a word depend on its context (Ethayarajh, 2019, section 3, arXiv 1909.00512).

Words whose vectors all point in about the same direction look similar whatever they mean. Each measure is therefore
adjusted: the same measure of words drawn from different sentences is subtracted (section 3.4). The variance is that
around the mean, and the random words are one from each sentence, as in the published code, kawine/contextual.

The measures read a sample of words of bounded size, which is drawn before anything is computed.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary

# Sizes of the sample. A word counts if it is in at least `_CONTEXTS` sentences, as in the paper (section 3.1).
_CONTEXTS, _TYPES, _OCCURRENCES, _SENTENCES, _RANDOM = 5, 300, 16, 200, 1000


@dataclasses.dataclass(frozen=True)
class Sample:
    """Words of examples that the measures read.

    Attributes:
      tokens: int64 [n], index of the first piece of each word in the tokens of the examples, ascending.
      types: int64 [n], the number of the word type that an occurrence counts for, -1 for none.
      sentences: int64 [n], the number of the sentence that a word counts for, -1 for none.
      is_random: bool [n], one word from each of many sentences.
    """

    tokens: np.ndarray
    types: np.ndarray
    sentences: np.ndarray
    is_random: np.ndarray


class Contextuality(NamedTuple):
    """Measures of one layer, before the adjustment, and the baselines that adjust them.

    Attributes:
      self_similarity: mean cosine of two occurrences of a word, averaged over word types.
      intra_sentence_similarity: mean cosine of a word and the mean of its sentence, averaged over sentences.
      explained_variance: share of the variance of a word's vectors along their first principal component, averaged over
        word types: the most that one static vector could explain.
      anisotropy: mean cosine of words from different sentences; it adjusts both similarities.
      random_variance: `explained_variance` of words from different sentences, which adjusts that measure.
    """

    self_similarity: float
    intra_sentence_similarity: float
    explained_variance: float
    anisotropy: float
    random_variance: float

    @property
    def adjusted(self) -> dict[str, float]:
        """The three measures without what words from different sentences also have."""
        return {
            "self_similarity": self.self_similarity - self.anisotropy,
            "intra_sentence_similarity": self.intra_sentence_similarity - self.anisotropy,
            "explained_variance": self.explained_variance - self.random_variance,
        }


def sample(ragged: Ragged, vocabulary: Vocabulary, seed: int) -> Sample:
    """Draw the words that `measure` reads.

    A word is its first piece. Occurrences are compared for words of one piece only, whose type is that piece. Each
    occurrence of a type is from another example.
    """
    random = np.random.default_rng(seed)
    starts = np.flatnonzero(word_starts(ragged, vocabulary))
    types, sentences, is_random = (np.full(len(ragged.tokens), fill, np.int64) for fill in (-1, -1, 0))

    whole = starts[~_is_continued(ragged, vocabulary)[starts]]
    whole = random.permutation(whole)
    _, first = np.unique(np.stack([ragged.tokens[whole], ragged.token_examples[whole]]), axis=1, return_index=True)
    whole = whole[np.sort(first)]  # one occurrence of a type in an example
    ids, counts = np.unique(ragged.tokens[whole], return_counts=True)
    for number, token in enumerate(random.permutation(ids[counts >= _CONTEXTS])[:_TYPES]):
        types[whole[ragged.tokens[whole] == token][:_OCCURRENCES]] = number

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


def _is_continued(ragged: Ragged, vocabulary: Vocabulary) -> np.ndarray:
    """Return whether the token after each token continues its word; bool [n]."""
    return np.append(vocabulary.continues_word[ragged.tokens[1:]] & ~ragged.special[1:], False)


def measure(states: np.ndarray, words: Sample) -> Contextuality:
    """Return the measures of one layer; nan for one whose words the sample lacks.

    Args:
      states: float [n, D], the states of `words.tokens`.
    """
    states = states.astype(np.float64)
    by_type = [states[words.types == number] for number in range(words.types.max(initial=-1) + 1)]
    by_sentence = [states[words.sentences == number] for number in range(words.sentences.max(initial=-1) + 1)]
    drawn = states[words.is_random]
    return Contextuality(
        self_similarity=_mean([mean_cosine(part) for part in by_type]),
        intra_sentence_similarity=_mean([_cosine_to_mean(part) for part in by_sentence]),
        explained_variance=_mean([explained_variance(part) for part in by_type]),
        anisotropy=mean_cosine(drawn),
        random_variance=explained_variance(drawn),
    )


def mean_cosine(vectors: np.ndarray) -> float:
    """Return the mean cosine of all pairs of different vectors [n, D], from their sum; nan for fewer than two."""
    count = len(vectors)
    if count < 2:
        return float("nan")
    total = _unit(vectors).sum(axis=0)
    return float((total @ total - count) / (count * (count - 1)))


def explained_variance(vectors: np.ndarray) -> float:
    """Return the share of the variance of vectors [n, D] along their first principal component.

    It is nan for fewer than two vectors, and if all are the same: there is no variance to explain.
    """
    centered = vectors - vectors.mean(axis=0) if len(vectors) > 1 else np.zeros((1, 1))
    gram = centered @ centered.T if len(centered) < centered.shape[1] else centered.T @ centered
    total = np.trace(gram)
    floor = np.finfo(np.float32).eps ** 2 * np.sum(vectors**2)  # states are float32
    return float(np.linalg.eigvalsh(gram)[-1] / total) if total > floor else float("nan")


def _cosine_to_mean(vectors: np.ndarray) -> float:
    return float(np.mean(_unit(vectors) @ _unit(vectors.mean(axis=0, keepdims=True))[0]))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), np.finfo(np.float64).tiny)


def _mean(values: list[float]) -> float:
    """Return the mean of the values that are not nan."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")
