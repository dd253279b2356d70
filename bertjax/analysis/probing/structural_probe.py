"""Structural probe: a linear map under which squared distances between words match distances in the syntax tree.

Hewitt & Manning, 2019 (aclanthology.org/N19-1419): d(i, j) = |B (h_i - h_j)|^2, with a low-rank B. Training minimizes
the L1 difference to the number of edges between two words, divided by the squared sentence length. UUAS is the fraction
of tree edges that the minimum spanning tree under d contains, punctuation excluded. Spearman correlates d with tree
distances per word. It is averaged over words in sentences with equal length, then over lengths 5 to 50.

The probes for all layers are one jitted step. A word is its first piece; the paper averages its pieces.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csgraph
from scipy.stats import rankdata

from bertjax.analysis.probing.linear_probe import OPTIMIZER, moments

# Word positions per batch. A sentence takes as many as its length bucket has.
_PLACES = 640
_SHORTEST = 8
_EPOCHS, _FEWEST_STEPS, _LEARNING_RATE = 10, 600, 1e-2
_LENGTHS = range(5, 51)


# By layer, [L] each: `uuas`, the fraction of correct edges, and `spearman`, the mean rank correlation of distances.
Scores = dict[str, np.ndarray]


class Sentence(NamedTuple):
    """A sentence with its tree.

    Attributes:
      start: position of the first word among the states; the other words follow.
      distances: int32 [W, W], tree edges between two words.
      is_word: bool [W], False for punctuation, which UUAS excludes.
    """

    start: int
    distances: np.ndarray
    is_word: np.ndarray

    @property
    def words(self) -> slice:
        """Positions of its words among the states."""
        return slice(self.start, self.start + len(self.distances))


def tree_distances(heads: Sequence[int]) -> np.ndarray:
    """Return the number of tree edges between all pairs of words; int32 [W, W].

    Args:
      heads: each word's head, counted from 1; 0 for the root.
    """
    edges = np.zeros((len(heads), len(heads)))
    for word, head in enumerate(heads):
        if head:
            edges[word, head - 1] = 1
    return csgraph.shortest_path(edges, directed=False, unweighted=True).astype(np.int32)


def fit(
    states: np.ndarray,
    sentences: Sequence[Sentence],
    rank: int,
    seed: int,
    on_words: Callable[[int], object] = lambda words: None,
) -> np.ndarray:
    """Train B for each layer; return float32 [L, D, rank].

    Args:
      states: float32 [n, L, D], for example a memory-mapped file; read in slices.
      sentences: trees over these words.
      rank: rows of B; more than D have no use.
      seed: seed for the initial B and batch order.
      on_words: called with the word count of each step.
    """
    _, layers, width = states.shape
    random = np.random.default_rng(seed)
    # Standard deviation of each layer's features around their means.
    scale = np.maximum(np.sqrt(moments(states)[1].mean(axis=-1)), 1e-6).astype(np.float32)
    # Uniform in [-0.05, 0.05], as in the authors' code, for states with a feature variance of about 1.
    projections = jnp.asarray(random.uniform(-0.05, 0.05, (layers, width, min(rank, width))), jnp.float32)
    optimizer_state = OPTIMIZER.init(projections)
    plan = [batch for _ in range(_epochs(sentences)) for batch in _batches(sentences, random)]
    for step, batch in enumerate(plan):
        rate = _LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / len(plan)))
        arrays = _arrays(states, batch, scale)
        projections, optimizer_state = _update(projections, optimizer_state, *arrays, rate)
        on_words(sum(len(sentence.distances) for sentence in batch))
    # B was trained on scaled states; dividing it by the scale makes it apply to the raw ones.
    return np.asarray(projections) / scale[:, None, None]


def work(sentences: Sequence[Sentence]) -> int:
    """Return the number of words that `fit` reads during training, for its progress bar."""
    return _epochs(sentences) * sum(len(sentence.distances) for sentence in sentences if len(sentence.distances) > 1)


def _epochs(sentences: Sequence[Sentence]) -> int:
    """Return the number of epochs; a small treebank gets more, so that the probes converge."""
    batches = len(list(_batches(sentences, np.random.default_rng(0))))
    return max(_EPOCHS, math.ceil(_FEWEST_STEPS / max(batches, 1)))


def score(states: np.ndarray, sentences: Sequence[Sentence], projections: np.ndarray) -> Scores:
    """Score the probes of all layers on sentences with trees.

    Args:
      states: float [n, L, D].
      projections: result of `fit`.
    """
    return _parsed(sentences, len(projections), lambda sentence: _distances(states[sentence.words], projections))


def score_chain(sentences: Sequence[Sentence]) -> Scores:
    """Score a chain in which each word is attached to the one before: the model-free baseline; L is 1."""
    places = np.arange(max(len(sentence.distances) for sentence in sentences))
    chain = np.abs(places[:, None] - places).astype(np.float64)
    return _parsed(sentences, 1, lambda sentence: chain[None, : len(sentence.distances), : len(sentence.distances)])


def _parsed(sentences: Sequence[Sentence], layers: int, distances_of: Callable[[Sentence], np.ndarray]) -> Scores:
    correct, total, by_length = np.zeros(layers), 0, defaultdict(list)
    for sentence in sentences:
        length = len(sentence.distances)
        if length < 2:
            continue
        predicted = distances_of(sentence)
        gold = spanning_tree(sentence.distances, sentence.is_word)
        total += len(gold)
        correct += [len(gold & spanning_tree(layer, sentence.is_word)) for layer in predicted]
        if length in _LENGTHS:
            by_length[length].append(rank_correlations(predicted, sentence.distances).mean(axis=-1))
    means = [np.mean(values, axis=0) for values in by_length.values()]
    spearman = np.mean(means, axis=0) if means else np.full(layers, np.nan)
    return {"uuas": correct / total if total else np.full(layers, np.nan), "spearman": spearman}


def spanning_tree(distances: np.ndarray, is_word: np.ndarray) -> set[tuple[int, int]]:
    """Return the edges (i < j) of the minimum spanning tree over words; punctuation is excluded.

    Args:
      distances: [W, W], symmetric.
      is_word: bool [W].
    """
    words = np.flatnonzero(is_word)
    among = distances[np.ix_(words, words)].astype(np.float64)
    # SciPy reads 0 as a missing edge, so distances are shifted above 0. A constant does not change the tree.
    tree = csgraph.minimum_spanning_tree(among + 1 + max(0.0, -among.min(initial=0))).tocoo()
    return {tuple(sorted((int(words[i]), int(words[j])))) for i, j in zip(tree.row, tree.col)}


def rank_correlations(predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation per row; float64 [L, W]. It is 0 for a row of equal values.

    Args:
      predicted: [L, W, W].
      gold: [W, W].
    """
    a, b = (rankdata(matrix, axis=-1) for matrix in (predicted, gold))
    a, b = (ranks - ranks.mean(axis=-1, keepdims=True) for ranks in (a, b))
    norms = np.sqrt(np.sum(a * a, axis=-1) * np.sum(b * b, axis=-1))
    return np.sum(a * b, axis=-1) / np.where(norms > 0, norms, 1)


def _distances(states: np.ndarray, projections: np.ndarray) -> np.ndarray:
    """Return squared distances, float64 [L, W, W], between a sentence's states [W, L, D]."""
    projected = np.einsum("wld,ldr->lwr", states, projections, optimize=True).astype(np.float64)
    # |a - b|^2 = |a|^2 + |b|^2 - 2 a.b, which avoids an array [L, W, W, R]. Rounding may leave it slightly negative.
    squares = np.sum(projected**2, axis=-1)
    gram = projected @ np.swapaxes(projected, 1, 2)
    return np.maximum(squares[:, :, None] + squares[:, None, :] - 2 * gram, 0)


def _batches(sentences: Sequence[Sentence], random: np.random.Generator) -> Iterator[list[Sentence]]:
    """Yield sentences of similar length in random order; single words, which have no tree, are dropped."""
    buckets = defaultdict(list)
    for index in random.permutation(len(sentences)):
        if len(sentences[index].distances) > 1:
            buckets[_width(len(sentences[index].distances))].append(sentences[index])
    batches = []
    for width, members in buckets.items():
        size = max(1, _PLACES // width)
        batches += [members[first : first + size] for first in range(0, len(members), size)]
    for index in random.permutation(len(batches)):
        yield batches[index]


def _width(length: int) -> int:
    """Return the bucket length for a sentence: a power of two."""
    return max(_SHORTEST, 1 << (length - 1).bit_length())


def _arrays(states: np.ndarray, batch: list[Sentence], scale: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return states [S, W, L, D], tree distances [S, W, W] and lengths [S], 0 for an empty place."""
    width = _width(len(batch[0].distances))
    size = max(1, _PLACES // width)
    padded = np.zeros((size, width, *states.shape[1:]), np.float32)
    distances, lengths = np.zeros((size, width, width), np.float32), np.zeros(size, np.int32)
    for row, sentence in enumerate(batch):
        lengths[row] = length = len(sentence.distances)
        padded[row, :length] = states[sentence.words] / scale[:, None]
        distances[row, :length, :length] = sentence.distances
    return padded, distances, lengths


@functools.partial(jax.jit, donate_argnums=(0, 1))
def _update(projections, state, states_SWLD, distances_SWW, lengths_S, rate):
    is_word_SW = jnp.arange(distances_SWW.shape[1]) < lengths_S[:, None]
    is_pair = is_word_SW[:, :, None] & is_word_SW[:, None, :]
    # Each sentence counts the same, whatever its number of word pairs.
    weights_S = (lengths_S > 0) / jnp.maximum(lengths_S, 1) ** 2 / jnp.sum(lengths_S > 0)

    def loss(projections):
        projected = jnp.einsum("swld,ldr->lswr", states_SWLD, projections)
        squares = jnp.sum(projected**2, axis=-1)
        gram = jnp.einsum("lsvr,lswr->lsvw", projected, projected)
        predicted = squares[..., :, None] + squares[..., None, :] - 2 * gram
        errors = jnp.where(is_pair, jnp.abs(predicted - distances_SWW), 0)
        return jnp.einsum("lsvw,s->", errors, weights_S)

    updates, state = OPTIMIZER.update(jax.grad(loss)(projections), state)
    return projections - rate * updates, state
