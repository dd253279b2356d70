"""Sampling of classes: probabilities, and independence from the batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.objectives.pretraining.electra import sample

DRAWS = 20_000


@pytest.mark.parametrize("classes", [128, 384])
def test_classes_are_drawn_with_the_probabilities_of_their_softmax(classes):
    draw = np.random.default_rng(0)
    logits = 3.0 * draw.normal(size=classes).astype(np.float32)
    logits[draw.permutation(classes)[: classes // 2]] = np.finfo(np.float32).min
    probabilities = np.exp(np.float64(logits) - logits.max())
    probabilities /= probabilities.sum()
    drawn = jax.jit(sample)(jnp.broadcast_to(logits, (DRAWS, classes)), jax.random.key(1))
    counts = np.bincount(drawn, minlength=classes)
    assert counts[probabilities == 0].sum() == 0
    expected = DRAWS * probabilities
    likely = expected >= 5
    # Pearson's statistic: its mean is its degrees of freedom, its variance twice that.
    statistic = ((counts[likely] - expected[likely]) ** 2 / expected[likely]).sum()
    assert abs(statistic - likely.sum()) < 4 * np.sqrt(2 * likely.sum())


def test_a_class_of_probability_one_is_always_drawn():
    sure = np.full((3, 256), -1e9, np.float32)
    sure[np.arange(3), [0, 127, 255]] = 0.0
    for seed in range(20):
        np.testing.assert_array_equal(sample(jnp.array(sure), jax.random.key(seed)), [0, 127, 255])


@pytest.mark.slow
def test_rows_with_their_own_keys_draw_the_same_in_any_batch():
    logits = jnp.array(np.random.default_rng(0).normal(size=(6, 4, 128)).astype(np.float32))
    keys = jax.random.split(jax.random.key(0), 6)
    whole = sample(logits, keys)
    np.testing.assert_array_equal(sample(logits[2:4], keys[2:4]), whole[2:4])
    assert len(np.unique(whole)) > 12
