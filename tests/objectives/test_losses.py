"""Losses against their definitions, in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.objectives.losses import binary_term, cosine_distance, kl_divergence, squared_error

DRAW = np.random.default_rng(0)


def test_binary_term_is_cross_entropy_over_what_counts():
    logits = DRAW.normal(size=(4, 50)).astype(np.float32)
    is_positive, is_counted = DRAW.random((4, 50)) < 0.3, DRAW.random((4, 50)) < 0.6
    loss, metrics = binary_term("fact", jnp.array(logits), jnp.array(is_positive), jnp.array(is_counted))
    chance = 1 / (1 + np.exp(-np.float64(logits)))
    expected = -np.log(np.where(is_positive, chance, 1 - chance))[is_counted].sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    is_predicted = logits > 0
    correct, both = is_predicted == is_positive, is_predicted & is_positive
    assert {name: tuple(map(float, pair)) for name, pair in metrics.items()} == {
        "fact_accuracy": (correct[is_counted].sum(), is_counted.sum()),
        "fact_precision": (both[is_counted].sum(), is_predicted[is_counted].sum()),
        "fact_recall": (both[is_counted].sum(), is_positive[is_counted].sum()),
    }


def test_distances_are_weighted_sums():
    first, second = DRAW.normal(size=(2, 3, 5, 8)).astype(np.float32)
    weights = DRAW.integers(0, 2, (3, 5)).astype(np.float32)
    cosines = (first * second).sum(-1) / np.linalg.norm(first, axis=-1) / np.linalg.norm(second, axis=-1)
    np.testing.assert_allclose(cosine_distance(first, second, weights), ((1 - cosines) * weights).sum(), rtol=1e-5)
    squares = (first - second) ** 2 * weights[..., None]
    np.testing.assert_allclose(squared_error(first, second, weights[..., None]), squares.sum(), rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.25, 0.5, 1.0, 4.0])
def test_padded_entries_count_at_no_temperature(temperature):
    """Neither in the divergence nor in its gradient; they hold the lowest float."""
    real = 3.0 * DRAW.normal(size=(2, 5, 7))
    logits = np.full((2, 5, 9), np.finfo(np.float32).min, np.float32)
    logits[..., :7] = real
    scaled = real / temperature
    logs = scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))
    expected = temperature**2 * np.sum(np.exp(logs[0]) * (logs[0] - logs[1]), axis=-1)
    np.testing.assert_allclose(kl_divergence(*jnp.asarray(logits), temperature), expected, rtol=1e-5)
    gradient = jax.grad(lambda student: kl_divergence(jnp.asarray(logits[0]), student, temperature).sum())(logits[1])
    np.testing.assert_allclose(
        gradient[..., :7], temperature * (np.exp(logs[1]) - np.exp(logs[0])), rtol=1e-4, atol=1e-6
    )
    assert not np.any(gradient[..., 7:])
