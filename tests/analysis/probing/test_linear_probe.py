"""Linear probes on constructed states."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from bertjax.analysis.probing.linear_probe import Labels, control_labels, probe, work

WORDS, HELDOUT, WIDTH, CLASSES = 1500, 500, 12, 5


@pytest.fixture(scope="module")
def data() -> tuple[Labels, Labels, np.ndarray]:
    """Layer 0 is noise, layer 1 has the class in linear form with noise; task 1 has random labels."""
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, (WORDS + HELDOUT, 2)).astype(np.int32)
    states = random.normal(size=(len(labels), 2, WIDTH)).astype(np.float32)
    states[:, 1] += 2 * random.normal(size=(CLASSES, WIDTH))[labels[:, 0]]
    states[:, 1] = states[:, 1] * 100 + 1000  # the scale of the states must not matter
    return Labels(states[:WORDS], labels[:WORDS]), Labels(states[WORDS:], labels[WORDS:]), states


@pytest.fixture(scope="module")
def probed(data):
    read = []
    probed = probe(*data[:2], CLASSES, seed=0, on_words=read.append)
    assert sum(read) == work(WORDS)
    return probed


def test_accuracy_is_that_of_a_converged_regression(data, probed):
    train, heldout, _ = data
    regression = LogisticRegression(max_iter=1000).fit(train.states[:, 1] / 100, train.numbers[:, 0])
    expected = regression.score(heldout.states[:, 1] / 100, heldout.numbers[:, 0])
    assert expected > 0.9
    assert probed["accuracy"][1, 0] == pytest.approx(expected, abs=0.02)


def test_noise_predicts_nothing(probed):
    for layer, task in ((0, 0), (0, 1), (1, 1)):
        assert probed["accuracy"][layer, task] == pytest.approx(1 / CLASSES, abs=0.06)


def test_majority_is_the_most_frequent_class_of_the_training_labels():
    random = np.random.default_rng(0)
    states = random.normal(size=(40, 1, 3)).astype(np.float32)
    train, heldout = np.repeat([2, 1], [25, 15])[:, None], np.repeat([2, 1], [4, 36])[:, None]
    probed = probe(Labels(states, train.astype(np.int32)), Labels(states, heldout.astype(np.int32)), 3, seed=0)
    assert probed["majority"] == pytest.approx([0.1])


def test_control_labels_belong_to_types_and_have_the_frequencies_of_the_labels():
    random = np.random.default_rng(0)
    types = [f"word{number}" for number in random.integers(0, 3000, 20_000)]
    labels = random.choice(3, 10_000, p=[0.7, 0.2, 0.1])
    control = control_labels(types, labels, seed=0)
    of_type = {}
    for word, label in zip(types, control, strict=True):
        assert of_type.setdefault(word, label) == label
    shares = np.bincount(list(of_type.values()), minlength=3) / len(of_type)
    np.testing.assert_allclose(shares, [0.7, 0.2, 0.1], atol=0.03)
    assert np.any(control != control_labels(types, labels, seed=1))
