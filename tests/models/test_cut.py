"""Surgery: cutting, its order, growing, and int8."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import cut, int8, vocabulary
from bertjax.models.cut import Importance, read_importance
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead
from bertjax.models.vocabulary import encoder_shapes, unpadded_shapes
from bertjax.runtime.errors import UserError
from tests import batches
from tests.batches import ENCODER

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


IMPORTANCE = Importance(
    DRAW.uniform(size=(ENCODER.layers, ENCODER.heads)),
    DRAW.uniform(size=(ENCODER.layers, ENCODER.feedforward)) * 1e-7,
    "sst2",
    "glue:SST-2",
    500,
    "Classification",
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "importance.json"
    path.write_bytes(IMPORTANCE.to_json())
    return path


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"format_version": 2}, "has format 2, and this bertjax reads format 1; make it again"),
        ({"heads": [[1.0]]}, r"has heads of the shape \[1, 1\], and the model has \[3, 2\]; make it from this model"),
        ({"neurons": [[1.0], [2.0, 3.0]]}, "is not an importance.json .*; make one with python -m bertjax analyze"),
        ({"heads": [[-1.0, 1.0]] * 3}, "has heads that are negative or not finite; make it again"),
        ({"heads": "all"}, "is not an importance.json"),
        ({"examples": "many"}, "is not an importance.json"),
    ],
)
def test_files_that_are_refused(path, changes, message):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=message) as caught:
        read_importance(path, ENCODER)
    assert "\n" not in str(caught.value)


PARTS = [(7, 9), (3,), (1, 2, 99)]


def make() -> dict:
    config, key = batches.ENCODER, jax.random.key(0)

    def init():
        encoder = Encoder(config).init(key, jnp.zeros((1, 1), jnp.int32))["params"]
        head = MaskedLMHead(config).init(key, jnp.zeros((1, 1, config.width)), encoder["embeddings"]["word"])["params"]
        return {"encoder": encoder, "heads": {"mlm": head}}

    filled = jax.tree.map(np.asarray, batches.filled(jax.eval_shape(init)))
    return vocabulary.pad(vocabulary.cut(filled, config), config)


def test_a_new_piece_starts_as_the_mean_of_its_parts_and_nothing_else_changes():
    params, config = make(), batches.ENCODER
    extended = vocabulary.add_pieces(params, config, PARTS)
    for path in (("encoder", "embeddings", "word"), ("heads", "mlm", "word_bias")):
        old, new = params, extended
        for key in path:
            old, new = old[key], new[key]
        assert new.dtype == old.dtype and len(new) == config.vocab_size + 3
        assert np.array_equal(new[:100], old[:100])
        expected = [(old[7] + old[9]) / 2, old[3], (old[1] + old[2] + old[99]) / 3]
        np.testing.assert_allclose(new[100:], expected, rtol=1e-6)
    cut = vocabulary.cut(extended, config)
    same = jax.tree.map(np.array_equal, cut, vocabulary.cut(params, config))
    assert all(jax.tree.leaves(same))


@pytest.mark.parametrize(
    "path, shape, scales",
    [
        ("layers/intermediate/kernel", (3, 16, 24), (3, 1, 24)),
        ("heads/mlm/transform/kernel", (16, 16), (1, 16)),
        ("embeddings/word", (60, 16), (60, 1)),
    ],
)
def test_the_error_of_a_weight_is_at_most_half_the_scale_of_its_channel(path, shape, scales):
    leaf = (DRAW.normal(size=shape) * DRAW.uniform(1e-6, 10, size=scales)).astype(np.float32)
    stored = int8.quantize({path: leaf})
    quantized, scale = stored[path], stored[f"{path}.scale"]
    assert quantized.dtype == np.int8 and scale.dtype == np.float32 and scale.shape == scales
    assert quantized.max() == 127 and quantized.min() == -127
    [(_, restored)] = int8.dequantize(stored).items()
    assert restored.dtype == np.float32
    assert np.all(np.abs(restored - leaf) <= scale * (0.5 + 1e-4))
    np.testing.assert_allclose(np.abs(restored).max(), np.abs(leaf).max(), rtol=1e-6)
    again = int8.quantize({path: restored})[path]
    assert np.array_equal(again, quantized)
