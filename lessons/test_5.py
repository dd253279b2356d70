"""Grade lesson 5: `pytest lessons/test_5.py`."""

import numpy as np

L, B, H, T = 2, 3, 2, 5


def maps(place):
    """Return attention of which all goes to one place, as a function of the token; one head, the others look at 0."""
    attention = np.zeros((L, B, H, T, T))
    attention[..., 0] = 1
    attention[1, :, 0] = 0
    for token in range(T):
        attention[1, :, 0, token, place(token)] = 1
    return attention


def test_the_token_before_is_left_of_the_diagonal(previous_token):
    before = np.asarray(previous_token(maps(lambda token: max(token - 1, 0))))
    after = np.asarray(previous_token(maps(lambda token: min(token + 1, T - 1))))
    assert before.shape == (L, H), f"the result has shape {before.shape} and should have [L, H], {(L, H)}"
    assert after[1, 0] < 0.5, "a head that looks at the next token counts: rows look, columns are looked at"
    assert not np.isclose(before[1, 0], (T - 1) / T), "average over T - 1 tokens: the first has none before it"
    assert before[1, 0] < 1.01, "the weights are summed and not averaged"
    assert np.isclose(before[1, 0], 1), f"this head always looks at the token before, and gets {before[1, 0]:.2f}"


def test_heads_and_layers_keep_their_places(previous_token):
    attention = np.random.default_rng(0).dirichlet(np.ones(T), size=(L, B, H, T))
    expected = [
        [np.mean([attention[layer, row, head, t, t - 1] for row in range(B) for t in range(1, T)]) for head in range(H)]
        for layer in range(L)
    ]
    assert np.allclose(previous_token(attention), expected), "the mean is over rows and tokens, no other axis"


def test_a_probe_is_scored_on_what_it_has_not_seen(probe):
    draw = np.random.default_rng(0)
    states, labels = draw.normal(size=(80, 60)), draw.integers(2, size=80)
    accuracy, _ = probe(states[:70], labels[:70], states[70:], labels[70:])
    assert accuracy < 0.95, "labels that are random cannot be predicted: the test data take part in the fit"


def test_a_probe_finds_what_is_linear(probe):
    draw = np.random.default_rng(1)
    states = draw.normal(size=(400, 6))
    labels = (states @ np.arange(6) > 0).astype(int)
    accuracy, _ = probe(states[:300], labels[:300], states[300:], labels[300:])
    assert accuracy > 0.9, f"the labels follow a plane and are found in {accuracy:.0%}; targets are 1 and -1"
    moved = states + 5.0
    accuracy, _ = probe(moved[:300], labels[:300], moved[300:], labels[300:])
    assert accuracy > 0.9, f"the same states, all moved by 5, are found in {accuracy:.0%}: the bias is missing"


def test_the_baseline_knows_the_training_labels_only(probe):
    states = np.random.default_rng(2).normal(size=(20, 3))
    train, test = np.array([1] * 7 + [0] * 3), np.array([1] * 2 + [0] * 8)
    _, constant = probe(states[:10], train, states[10:], test)
    assert not np.isclose(constant, 0.8), "the constant answer is taken from the test labels, which nobody knows yet"
    assert not np.isclose(constant, 0.7), "the accuracy of the constant answer is that on the test labels"
    assert np.isclose(constant, 0.2), f"always 1 is right for 2 of 10 test labels, not {constant:.0%}"
    _, constant = probe(states[:10], 1 - train, states[10:], test)
    assert np.isclose(constant, 0.8), "the constant answer is the more frequent label of the training data, 0 or 1"
