"""The parts of MobileBERT and of its teacher: bottlenecks, stacked feed-forward networks, NoNorm, trigrams.

Outputs are compared with transformers in tests/interop/test_parity.py.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.blocks.mobilebert import MobileBertBlock as Mobile
from bertjax.models.blocks.mobilebert import MobileBertEmbeddings, trigrams
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead
from bertjax.models.presets import PRESETS
from bertjax.models.vocabulary import encoder_shapes
from bertjax.objectives.pretraining.electra import Electra
from bertjax.runtime.errors import UserError
from bertjax.training.parallel.sharding import ENCODER_RULES, spec_of
from tests import batches

NARROW = {
    "vocab_size": 100,
    "layers": 2,
    "width": 16,
    "heads": 2,
    "feedforward": 24,
    "max_positions": 16,
    "embeddings.width": 8,
}
MOBILE = PRESETS["mobilebert"].replace(NARROW | {"block.inner_width": 8, "block.feedforwards": 2})
TINY = PRESETS["mobilebert_tiny"].replace(NARROW | {"block.inner_width": 8})
TEACHER = PRESETS["ib_bert_large"].replace(NARROW | {"block.inner_width": 32})
ALL = pytest.mark.parametrize("config", [MOBILE, TINY, TEACHER], ids=["mobile", "tiny", "teacher"])


@functools.cache
def params_of(config: EncoderConfig) -> dict:
    shapes = jax.eval_shape(Encoder(config).init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    return batches.filled(shapes["params"])


@functools.partial(jax.jit, static_argnames="config")
def encode(config, params, tokens_BT, **inputs):
    return Encoder(config).apply({"params": params}, tokens_BT, **inputs)


def test_trigrams_are_the_next_this_and_the_previous_token_of_the_same_example():
    words_BTE = jnp.array([[[1.0], [2.0], [3.0], [4.0], [5.0]]])
    expected = [[2, 1, 0], [0, 2, 1], [4, 3, 0], [0, 4, 3], [0, 5, 0]]
    np.testing.assert_array_equal(trigrams(words_BTE, jnp.array([[1, 1, 2, 2, 0]]))[0], expected)


@ALL
def test_packing_and_padding_do_not_change_an_example(config):
    """Rows with two examples, with one and padding, and with one alone; other tokens in the padding."""
    lengths, draw = (5, 7), np.random.default_rng(0)
    first, second = (draw.integers(1, 100, length) for length in lengths)
    packed = {
        "tokens_BT": np.concatenate([first, second])[None],
        "positions_BT": np.concatenate([np.arange(length) for length in lengths])[None],
        "examples_BT": np.repeat([1, 2], lengths)[None],
    }
    together = encode(config, params_of(config), **packed).hidden[0]
    for tokens, states in ((first, together[:5]), (second, together[5:])):
        padded_BT = np.concatenate([tokens, draw.integers(1, 100, 12 - len(tokens))])[None]
        examples_BT = (np.arange(12) < len(tokens)).astype(np.int32)[None]
        alone = encode(config, params_of(config), padded_BT, examples_BT=examples_BT).hidden[0, : len(tokens)]
        np.testing.assert_allclose(states, alone, rtol=1e-4, atol=1e-4 * np.abs(alone).max())


@ALL
def test_the_last_layer_at_a_few_positions_computes_the_same(config):
    tokens_BT, read_BK = np.arange(20).reshape(2, 10) + 7, np.array([[1, 4], [9, 0]])
    whole = encode(config, params_of(config), tokens_BT)
    read = encode(config, params_of(config), tokens_BT, read_BK=read_BK)
    expected = np.take_along_axis(np.asarray(whole.hidden), read_BK[..., None], axis=1)
    tolerance = {"rtol": 1e-4, "atol": 1e-5 * np.abs(expected).max()}
    np.testing.assert_allclose(read.hidden, expected, **tolerance)
    np.testing.assert_allclose(read.pooled_BND, whole.pooled_BND, **tolerance)


@pytest.mark.parametrize(
    "preset, millions",
    [("mobilebert", 25.3), ("mobilebert_tiny", 15.1), ("ib_bert_large", 293)],
)
def test_presets_have_about_as_many_parameters_as_table_1_of_the_paper(preset, millions):
    """The paper does not state which heads it counts; transformers' MobileBertModel has 24,844,544."""
    shapes = encoder_shapes(dataclasses.replace(PRESETS[preset], vocab_size=30_522))
    count = sum(map(math.prod, shapes.values()))
    assert count == pytest.approx(millions * 1e6, rel=0.05)
    assert preset != "mobilebert" or count == 24_844_544


def test_the_head_multiplies_word_embeddings_and_the_channels_that_they_lack():
    head, hidden, word_VE = MaskedLMHead(MOBILE), np.ones((1, 1, 16), np.float32), np.ones((128, 8), np.float32)
    params = batches.filled(jax.eval_shape(head.init, jax.random.key(0), hidden, word_VE)["params"])
    assert params["word_rest"].shape == (128, 8) and params["transform"]["kernel"].shape == (16, 16)
    changed = params | {"word_rest": params["word_rest"] * 0.0}
    first, second = (np.asarray(head.apply({"params": p}, hidden, word_VE))[0, 0, :100] for p in (params, changed))
    # Without the rest, equal rows of word embeddings differ only by their biases.
    np.testing.assert_allclose(np.ptp(second - params["word_bias"][:100]), 0.0, atol=1e-5)
    assert np.ptp(first - params["word_bias"][:100]) > 0.1


@ALL
def test_every_parameter_is_sharded_by_a_rule(config):
    for path, shape in encoder_shapes(config).items():
        spec = spec_of(f"encoder/{path}", np.zeros(shape), ENCODER_RULES)
        is_kernel = path.endswith("kernel")
        assert ("fsdp" in str(spec)) == (is_kernel or path.startswith("embeddings/") and "/" not in path[11:]), path


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"block": Mobile(bottlenecked="some")},
            "model.block.bottlenecked='some' is unknown; choose one of none, quer",
        ),
        (
            {"block": Mobile(normalization="none")},
            "model.block.normalization='none' is unknown; choose one of layer_no",
        ),
        ({"block": Mobile(inner_width=100)}, "model.block.inner_width=100 is not divisible by model.heads=12"),
        ({"block": Mobile(inner_width=96), "sharing": "all"}, "model.block.kind=mobilebert .*model.sharing=all"),
        (
            {"embeddings": MobileBertEmbeddings(width=1024)},
            "model.embeddings.kind=mobilebert needs embeddings of at most model.w",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(UserError, match=f"^{message}"):
        EncoderConfig(**settings)


def test_a_generator_cannot_share_embeddings_that_are_as_wide_as_the_encoder():
    with pytest.raises(UserError, match="^objective.kind=electra shares embeddings .* set it to bert$"):
        Electra().generator(MOBILE)
