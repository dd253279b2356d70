"""Layers, heads and neurons that are cut from an encoder, and orders of them that leave its function as it is."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bertjax.models import cut
from bertjax.models.encoder import Encoder
from bertjax.models.vocabulary import encoder_shapes, unpadded_shapes
from tests import batches

CONFIGS = {
    "bert": batches.ENCODER,
    "modern": dataclasses.replace(batches.ENCODER, **batches.ROTARY).replace({"embeddings.segments": 0}),
    "relative": dataclasses.replace(batches.ENCODER, **batches.RELATIVE),
    "disentangled": dataclasses.replace(batches.ENCODER, **batches.DISENTANGLED),
    "shared": dataclasses.replace(batches.ENCODER, layers=4, sharing="all", sharing_groups=2),
    "shared_attention": dataclasses.replace(batches.ENCODER, sharing="attention"),
}
BATCH = batches.make(2)
DRAW = np.random.default_rng(0)


@functools.cache
def params_of(config):
    encoder = Encoder(config)
    shapes = jax.eval_shape(lambda: encoder.init(jax.random.key(0), BATCH["tokens_BT"]))["params"]
    return batches.filled(shapes)


@functools.partial(jax.jit, static_argnames="config")
def _hidden(params, config, taps):
    inputs = (BATCH[name] for name in ("tokens_BT", "segments_BT", "positions_BT", "examples_BT"))
    return Encoder(config).apply({"params": params} | ({"taps": taps} if taps else {}), *inputs).hidden


def hidden(params, config, **taps):
    return np.asarray(_hidden(params, config, taps))


@pytest.mark.parametrize("name", CONFIGS)
def test_another_order_of_heads_and_neurons_is_the_same_function(name):
    config = CONFIGS[name]
    heads = cut.most_important(DRAW.uniform(size=(config.layers, config.heads)), config, "attention", config.heads)
    heads[0] = heads[0][::-1] if np.array_equal(heads[0], np.arange(config.heads)) else heads[0]
    importance = DRAW.uniform(size=(config.layers, config.feedforward))
    neurons = cut.most_important(importance, config, "intermediate", config.feedforward)
    permuted, same = cut.neurons(*cut.heads(params_of(config), config, heads), neurons)
    assert same == config
    kernels = [params["layers"]["attention"]["value"]["kernel"] for params in (permuted, params_of(config))]
    assert not np.array_equal(*kernels)
    np.testing.assert_allclose(hidden(permuted, config), hidden(params_of(config), config), atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_cut_heads_and_neurons_are_those_that_a_mask_switches_off(name):
    config = CONFIGS[name]
    importance = {
        "head_mask": DRAW.uniform(size=(config.layers, config.heads)),
        "feedforward_mask": DRAW.uniform(size=(config.layers, config.feedforward)),
    }
    kept = {
        "head_mask": cut.most_important(importance["head_mask"], config, "attention", 1),
        "feedforward_mask": cut.most_important(importance["feedforward_mask"], config, "intermediate", 20),
    }
    params, smaller = cut.heads(params_of(config), config, kept["head_mask"])
    params, smaller = cut.neurons(params, smaller, kept["feedforward_mask"])
    assert (smaller.heads, smaller.head_width, smaller.context_width, smaller.feedforward) == (1, 8, 8, 20)
    assert unpadded_shapes(params, smaller) == encoder_shapes(smaller)
    masks = {}
    for mask, indices in kept.items():
        rows = np.zeros((len(indices), importance[mask].shape[1]), np.float32)
        np.put_along_axis(rows, indices, 1.0, axis=1)
        masks[mask] = np.repeat(rows, config.layers // len(indices), axis=0)
    masked = hidden(params_of(config), config, **masks)
    np.testing.assert_allclose(hidden(params, smaller), masked, atol=2e-5)
    whole, whole_config = cut.with_zero_heads(params, smaller)
    assert (whole_config.heads, whole_config.head_width) == (config.heads, 0)
    np.testing.assert_allclose(hidden(whole, whole_config), masked, atol=2e-5)


def test_layers_that_are_cut_leave_the_others():
    config, params = CONFIGS["bert"], params_of(CONFIGS["bert"])
    shallow, smaller = cut.layers(params, config, [0, 2])
    assert smaller == dataclasses.replace(config, layers=2)
    first, _ = cut.layers(params, config, [0])
    last, _ = cut.layers(params, config, [2])
    for leaves in zip(*(jax.tree.leaves(tree["layers"]) for tree in (shallow, first, last)), strict=True):
        np.testing.assert_array_equal(leaves[0], np.concatenate(leaves[1:]))
    assert hidden(shallow, smaller).shape == hidden(params, config).shape


def test_heads_that_cannot_fill_the_width_are_refused():
    config = dataclasses.replace(batches.ENCODER, heads=3, head_width=6)
    with pytest.raises(ValueError, match="3 heads of width 6 cannot fill the width 16"):
        cut.with_zero_heads(params_of(batches.ENCODER), config)


def test_the_importance_of_layers_that_share_a_row_is_summed():
    config = CONFIGS["shared"]
    importance = np.array([[1.0, 0.0], [0.0, 0.5], [0.0, 3.0], [2.0, 0.0]])
    assert cut.most_important(importance, config, "attention", 2).tolist() == [[0, 1], [1, 0]]
