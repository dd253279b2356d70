"""Relative positions and two streams: the parts of XLNet."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.attention import attend
from bertjax.models.bert import BertEmbeddings, BertLayer
from bertjax.models.blocks.xlnet import RelativeBias, relative_positions
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.pooling import last_columns
from bertjax.models.presets import PRESETS
from bertjax.models.streams import Streams
from bertjax.models.visibility import LayerInputs, Visibility
from bertjax.runtime.errors import UserError
from tests import batches
from tests.models.encoding import params_of

CONFIG = dataclasses.replace(
    PRESETS["xlnet_base"], vocab_size=100, layers=3, width=16, heads=2, feedforward=24, max_positions=16,
    dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
KEY = jax.random.key(0)
TOKENS_BT = np.arange(10, 22)[None]
# 2 and 9 are given, 7, 4, 0 and 10 follow in this order; the second example is 6, 11, 8, the rest is padding.
EXAMPLES_BT = np.array([[1, 0, 1, 0, 1, 0, 2, 1, 2, 1, 1, 2]])
RANK_BT = np.array([[4, 0, 1, 0, 3, 0, 1, 2, 3, 1, 5, 2]])
READ_BK = np.array([[0, 4, 7, 8, 10, 11]])


@functools.partial(jax.jit, static_argnames="config")
def encode(config, params, tokens_BT=TOKENS_BT, segments_BT=None, examples_BT=EXAMPLES_BT, **others):
    return Encoder(config).apply({"params": params}, tokens_BT, segments_BT, None, examples_BT, **others)


def predict(config, params, tokens_BT=TOKENS_BT, memory_BT=None, **others):
    return encode(config, params, tokens_BT, streams=Streams(READ_BK, RANK_BT, memory_BT), **others).hidden


def reached(of_states, config=CONFIG) -> np.ndarray:
    """Return which of the 12 tokens each of the states (a function of params, [1, Q, D]) depends on; bool [Q, 12]."""
    params = params_of(config)

    def of_words(word_VD):
        hidden = of_states(params | {"embeddings": params["embeddings"] | {"word": word_VD}})
        return jnp.sum(jnp.sin(3 * hidden[0]), axis=-1)

    jacobian_QVD = jax.jit(jax.jacrev(of_words))(params["embeddings"]["word"])
    return np.abs(np.asarray(jacobian_QVD))[:, TOKENS_BT[0]].max(axis=-1) > 0


def test_logits_are_those_of_the_formula():
    """((q + u) k + (q + v) W r + (q + w) s) / sqrt(C), query by query and key by key."""
    module, tokens, heads, channels = RelativeBias(CONFIG), 5, CONFIG.heads, CONFIG.width // CONFIG.heads
    draw = np.random.default_rng(0)
    query_BQHC, key_BTHC, value_BTHC = draw.normal(size=(3, 1, tokens, heads, channels)).astype(np.float32)
    segments_BT = np.array([[0, 0, 1, 1, 0]])
    positions = relative_positions(CONFIG, jnp.asarray(segments_BT))
    params = batches.filled(jax.eval_shape(lambda key: module.init(key, query_BQHC, positions, None, tokens), KEY))
    biased_BQHC, bias_BHQT = module.apply(params, query_BQHC, positions, None, tokens)
    everything = np.ones((1, tokens, tokens), bool)
    _, actual_BHQT = attend(biased_BQHC, key_BTHC, value_BTHC, everything, 0.0, None, bias_BHQT)

    leaves = jax.tree.map(np.float64, params["params"])
    expected_HQT = np.zeros((heads, tokens, tokens))
    for head, query, key in np.ndindex(expected_HQT.shape):
        q = query_BQHC[0, query, head]
        angles = (query - key) / 10_000 ** (np.arange(CONFIG.width // 2) / (CONFIG.width // 2))
        r = (np.array([*np.sin(angles), *np.cos(angles)]) @ leaves["distance"]["kernel"]).reshape(heads, channels)[head]
        s = leaves["segment"][int(segments_BT[0, query] != segments_BT[0, key]), head]
        expected_HQT[head, query, key] = (
            (q + leaves["content_bias"][head]) @ key_BTHC[0, key, head]
            + (q + leaves["distance_bias"][head]) @ r
            + (q + leaves["segment_bias"][head]) @ s
        ) / np.sqrt(channels)
    weights_HQT = np.exp(expected_HQT - expected_HQT.max(axis=-1, keepdims=True))
    expected_HQT = weights_HQT / weights_HQT.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(actual_BHQT[0], expected_HQT, rtol=1e-4, atol=1e-6)


def test_a_query_sees_earlier_tokens_of_the_order_and_not_itself():
    """Through three layers, so that content states do not leak later tokens either."""
    is_before = (RANK_BT[0, READ_BK[0], None] > RANK_BT[0]) & (EXAMPLES_BT[0, READ_BK[0], None] == EXAMPLES_BT[0])
    np.testing.assert_array_equal(reached(lambda params: predict(CONFIG, params)), is_before)


def test_a_content_state_sees_earlier_tokens_of_the_order_and_itself():
    streams = Streams(READ_BK, RANK_BT)
    positions = relative_positions(CONFIG, np.zeros_like(TOKENS_BT))

    def states(params):
        hidden_BTD = params["embeddings"]["word"][TOKENS_BT]
        query_BKD = jnp.broadcast_to(params["embeddings"]["query"], (1, READ_BK.size, CONFIG.width))
        hidden_BSD = jnp.concatenate([hidden_BTD, query_BKD], axis=1)
        for number in range(2):
            layer = jax.tree.map(lambda leaf, number=number: leaf[number], params["layers"])
            visibility = Visibility(EXAMPLES_BT, rank_BT=RANK_BT)
            queries = streams.queries(hidden_BSD, is_last=False)
            apply = functools.partial(BertLayer(CONFIG).apply, {"params": layer})
            inputs = LayerInputs(streams.content(hidden_BSD), visibility, queries=queries, positions=positions)
            hidden_BSD = apply(inputs)
        return hidden_BSD[:, :12]

    sees = (RANK_BT[0, :, None] >= RANK_BT[0]) & (EXAMPLES_BT[0, :, None] == EXAMPLES_BT[0])
    np.testing.assert_array_equal(reached(states), sees)


def test_memory_is_seen_and_passes_no_gradient_on():
    memory_BT = np.array([[1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]], bool)
    without, with_memory = (
        reached(lambda params, memory_BT=seen_BT: predict(CONFIG, params, memory_BT=memory_BT))
        for seen_BT in (np.zeros_like(memory_BT), memory_BT)
    )
    np.testing.assert_array_equal(with_memory, without & ~memory_BT)
    params, changed_BT = params_of(CONFIG), TOKENS_BT + 20 * memory_BT
    plain = predict(CONFIG, params, memory_BT=memory_BT)
    np.testing.assert_array_equal(plain, predict(CONFIG, params))
    assert np.abs(predict(CONFIG, params, changed_BT, memory_BT=memory_BT) - plain).max() > 0.01


def test_the_summary_of_an_example_is_its_last_token():
    examples_BT = np.array([[1, 1, 1, 2, 2, 3, 0, 0], [0, 2, 2, 1, 1, 1, 1, 0]])
    np.testing.assert_array_equal(last_columns(examples_BT, slots=4), [[2, 4, 5, 0], [6, 2, 0, 0]])


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"embeddings": BertEmbeddings()}, "model.block.kind=xlnet has relative positions and segments, and model.emb"),
        ({"width": 3, "heads": 1}, "model.block.kind=xlnet needs an even model.width, not 3"),
    ],
)
def test_invalid_parts(fields, message):
    with pytest.raises(UserError, match=f"^{message}"):
        EncoderConfig(**batches.RELATIVE | fields)
