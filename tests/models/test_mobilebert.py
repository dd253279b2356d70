"""The parts of MobileBERT and of its teacher: bottlenecks, stacked feed-forward networks, NoNorm, trigrams.

Outputs are compared with transformers in tests/interop/test_parity.py.
"""

import functools

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
from bertjax.objectives.pretraining.electra import Electra
from bertjax.runtime.errors import UserError
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


@functools.partial(jax.jit, static_argnames="config")
def encode(config, params, tokens_BT, **inputs):
    return Encoder(config).apply({"params": params}, tokens_BT, **inputs)


def test_trigrams_are_the_next_this_and_the_previous_token_of_the_same_example():
    words_BTE = jnp.array([[[1.0], [2.0], [3.0], [4.0], [5.0]]])
    expected = [[2, 1, 0], [0, 2, 1], [4, 3, 0], [0, 4, 3], [0, 5, 0]]
    np.testing.assert_array_equal(trigrams(words_BTE, jnp.array([[1, 1, 2, 2, 0]]))[0], expected)


def test_the_head_multiplies_word_embeddings_and_the_channels_that_they_lack():
    head, hidden, word_VE = MaskedLMHead(MOBILE), np.ones((1, 1, 16), np.float32), np.ones((128, 8), np.float32)
    params = batches.filled(jax.eval_shape(head.init, jax.random.key(0), hidden, word_VE)["params"])
    assert params["word_rest"].shape == (128, 8) and params["transform"]["kernel"].shape == (16, 16)
    changed = params | {"word_rest": params["word_rest"] * 0.0}
    first, second = (np.asarray(head.apply({"params": p}, hidden, word_VE))[0, 0, :100] for p in (params, changed))
    # Without the rest, equal rows of word embeddings differ only by their biases.
    np.testing.assert_allclose(np.ptp(second - params["word_bias"][:100]), 0.0, atol=1e-5)
    assert np.ptp(first - params["word_bias"][:100]) > 0.1


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
