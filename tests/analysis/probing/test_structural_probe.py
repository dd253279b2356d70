"""The structural probe on vectors that are constructed to encode trees."""

import itertools

import numpy as np
import pytest
from scipy.stats import spearmanr

from bertjax.analysis.probing.structural_probe import Sentence, fit, score, tree_distances, work

WIDTH = 48


def random_heads(length: int, random: np.random.Generator) -> list[int]:
    """A tree: each word but the first hangs on one before it, in an order unlike that of the sentence."""
    order = random.permutation(length)
    heads = [0] * length
    for place in range(1, length):
        heads[order[place]] = int(order[random.integers(place)]) + 1
    return heads


def edge_vectors(heads: list[int]) -> np.ndarray:
    """Each word is the sum of one axis for each edge to the root: squared distances are those of the tree."""
    vectors = np.zeros((len(heads), len(heads)))
    for word in range(len(heads)):
        above = word
        while heads[above]:
            vectors[word, above] = 1
            above = heads[above] - 1
    return vectors


@pytest.fixture(scope="module")
def treebank() -> tuple[np.ndarray, list[Sentence]]:
    """States [n, 2, D]: layer 0 is noise; layer 1 hides the tree in a rotated subspace beside noise."""
    random = np.random.default_rng(0)
    rotation = np.linalg.qr(random.normal(size=(WIDTH, WIDTH)))[0]
    states, sentences, start = [], [], 0
    for _ in range(300):
        heads = random_heads(random.integers(1, 13), random)
        length = len(heads)
        hidden = np.zeros((length, WIDTH))
        hidden[:, :length] = edge_vectors(heads)
        hidden[:, WIDTH // 2 :] = random.normal(size=(length, WIDTH // 2))
        states.append(np.stack([random.normal(size=(length, WIDTH)), hidden @ rotation + 5], axis=1))
        sentences.append(Sentence(start, tree_distances(heads), np.ones(length, bool)))
        start += length
    return np.concatenate(states).astype(np.float32), sentences


def test_constructed_vectors_have_the_distances_of_their_tree():
    heads = random_heads(9, np.random.default_rng(3))
    vectors = edge_vectors(heads)
    squared = np.sum((vectors[:, None] - vectors) ** 2, axis=-1)
    np.testing.assert_array_equal(squared, tree_distances(heads))


def test_trees_are_recovered_from_the_layer_that_encodes_them(treebank):
    states, sentences = treebank
    read = []
    probes = fit(states, sentences[:250], rank=24, seed=0, on_words=read.append)
    assert sum(read) == work(sentences[:250])
    assert probes.shape == (2, WIDTH, 24)
    parsed = score(states, sentences[250:], probes)
    assert parsed["uuas"][1] > 0.95 and parsed["spearman"][1] > 0.95
    assert parsed["uuas"][0] < 0.5 and parsed["spearman"][0] < 0.4


def test_scores_are_their_definitions(treebank):
    states, sentences = treebank
    probes = np.random.default_rng(1).normal(size=(2, WIDTH, 3)).astype(np.float32)
    parsed = score(states, sentences[:40], probes)
    correct = total = 0
    by_length: dict[int, list[float]] = {}
    for sentence in sentences[:40]:
        vectors = states[sentence.words, 1] @ probes[1]
        length = len(vectors)
        predicted = np.array([[np.sum((a - b) ** 2) for b in vectors] for a in vectors])
        gold = {(i, j) for i, j in itertools.combinations(range(length), 2) if sentence.distances[i, j] == 1}
        total += len(gold)
        correct += len(gold & kruskal(predicted))
        if length >= 5:
            rows = [spearmanr(a, b).statistic for a, b in zip(predicted, sentence.distances, strict=True)]
            by_length.setdefault(length, []).extend(rows)
    assert parsed["uuas"][1] == pytest.approx(correct / total)
    assert parsed["spearman"][1] == pytest.approx(np.mean([np.mean(rows) for rows in by_length.values()]), abs=1e-5)


def kruskal(distances: np.ndarray) -> set[tuple[int, int]]:
    group, edges = list(range(len(distances))), set()
    for i, j in sorted(itertools.combinations(range(len(distances)), 2), key=lambda pair: distances[pair]):
        if group[i] != group[j]:
            edges.add((i, j))
            group = [group[i] if number == group[j] else number for number in group]
    return edges
