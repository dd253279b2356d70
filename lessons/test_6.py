"""Grade lesson 6: `pytest lessons/test_6.py`."""

import copy

import jax
import numpy as np
from lesson import HERE  # noqa: F401 - it finds bertjax

from bertjax.models import int8

DRAW = np.random.default_rng(0)
KERNEL = (DRAW.normal(size=(16, 4)) * [1.0, 0.01, 30.0, 0.0]).astype(np.float32)


def test_integers_times_scales_are_near(quantize):
    integers, scales = quantize(KERNEL)
    assert integers.dtype == np.int8 and np.shape(scales) == (1, 4), "return int8 [D, F] and scales [1, F]"
    assert np.isfinite(scales).all() and not np.any(integers[:, 3]), "a column of zeros must stay zeros, without nan"
    assert np.any(integers[:, 1]), "the small column became 0: each column needs a scale of its own"
    assert np.abs(integers).max() == 127, f"the largest integer is {np.abs(integers.astype(int)).max()} and not 127"
    error = np.abs(integers * scales - KERNEL).max(axis=0)
    half = np.asarray(scales)[0] / 2 + 1e-7
    assert (error <= 2.01 * half).all(), "the error exceeds a whole step"
    assert (error <= 1.01 * half).all(), "the error exceeds half a step: astype cuts off the fraction, use np.round"
    theirs = int8.quantize({"kernel": KERNEL})
    assert (theirs["kernel"] == integers).all(), "it differs from bertjax.models.int8"


def test_fewer_bits_have_fewer_levels(quantize):
    for bits in (2, 4):
        integers, _ = quantize(KERNEL[:, :3], bits)
        most = 2 ** (bits - 1) - 1
        largest = np.abs(integers.astype(int)).max(axis=0)
        assert (largest == most).all(), f"with {bits} bits the largest of each column is {most}, not {largest}"


T, WIDTH, HEADS = 5, 12, 3
ATTENTION = {
    name: {"kernel": DRAW.normal(size=(WIDTH, WIDTH)) / 3, "bias": DRAW.normal(size=WIDTH)}
    for name in ("query", "key", "value", "output")
}
HIDDEN = DRAW.normal(size=(T, WIDTH))


def attend(attention, heads, mask):
    """Return the output of attention with a factor for each head."""
    split = [
        np.split(HIDDEN @ attention[name]["kernel"] + attention[name]["bias"], heads, axis=1)
        for name in ("query", "key", "value")
    ]
    contexts = [
        factor * np.asarray(jax.nn.softmax(query @ key.T / np.sqrt(query.shape[1]), axis=-1)) @ value
        for factor, query, key, value in zip(mask, *split)
    ]
    return np.concatenate(contexts, axis=1) @ attention["output"]["kernel"] + attention["output"]["bias"]


def test_a_cut_is_a_mask(cut_heads):
    for kept in ([0, 2], [1], [2]):
        attention = copy.deepcopy(ATTENTION)
        cut = cut_heads(attention, kept, WIDTH // HEADS)
        is_same = [np.array_equal(a, b) for a, b in zip(jax.tree.leaves(attention), jax.tree.leaves(ATTENTION))]
        assert all(is_same), "`attention` was changed: the model loses its heads. Return new dictionaries"
        inner = len(kept) * WIDTH // HEADS
        for name in ("query", "key", "value"):
            shape = np.shape(cut[name]["kernel"])
            assert shape != (inner, WIDTH), f"rows of {name} were cut; a head is made by columns (x @ kernel)"
            assert shape == (WIDTH, inner), f"the kernel of {name} has shape {shape} and should have {(WIDTH, inner)}"
            assert np.shape(cut[name]["bias"]) == (inner,), f"the bias of {name} belongs to the heads: cut it as well"
        shape = np.shape(cut["output"]["kernel"])
        assert shape == (inner, WIDTH), f"the kernel of output has shape {shape}; it reads the heads with its rows"
        assert np.shape(cut["output"]["bias"]) == (WIDTH,), "the bias of output belongs to no head: keep it"
        mask = [float(head in kept) for head in range(HEADS)]
        same = np.allclose(attend(cut, len(kept), [1.0] * len(kept)), attend(ATTENTION, HEADS, mask), atol=1e-5)
        assert same, f"keeping the heads {kept} is not the same as a mask of 0 for the others"
