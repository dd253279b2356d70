"""The layer of a bidirectional LSTM: parity with numpy, gradients, and the examples of a row."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.config import from_dict
from bertjax.models import taps
from bertjax.models.bert import BertEmbeddings
from bertjax.models.blocks.lstm import LSTMBlock, LSTMLayer
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.visibility import Visibility
from bertjax.runtime.errors import UserError

WIDTH = 6
EXAMPLES_BT = np.array([[1, 1, 1, 2, 2, 0, 0], [1, 2, 2, 2, 2, 3, 3]])


@pytest.fixture(scope="module")
def setting():
    """Return (layer, its params with values of order 1, inputs)."""
    layer = LSTMLayer(
        EncoderConfig(block=LSTMBlock(), embeddings=BertEmbeddings(positions="none"), width=WIDTH, dropout=0.0)
    )
    rng = np.random.default_rng(0)
    hidden_BTD = rng.normal(size=(*EXAMPLES_BT.shape, WIDTH)).astype(np.float32)
    params = layer.init(jax.random.key(0), hidden_BTD, Visibility(jnp.array(EXAMPLES_BT)))["params"]
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params)
    return layer, params, hidden_BTD


def apply(layer, params, hidden_BTD, examples_BT=EXAMPLES_BT, queries=None):
    return layer.apply({"params": params}, hidden_BTD, Visibility(jnp.array(examples_BT)), None, queries)


def reference(params, hidden_BTD):
    """Return the output in float64, one example and one token at a time."""

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    output = np.zeros(hidden_BTD.shape)
    for row, examples in enumerate(EXAMPLES_BT):
        for example in np.unique(examples):
            columns = np.flatnonzero(examples == example)
            for name, order, part in (("forward", columns, slice(0, 3)), ("backward", columns[::-1], slice(3, 6))):
                state, cell = np.zeros(3), np.zeros(3)
                for column in order:
                    gates = (
                        hidden_BTD[row, column] @ np.float64(params[name]["input"]["kernel"])
                        + params[name]["input"]["bias"]
                    )
                    write, keep, new, read = np.split(gates + state @ np.float64(params[name]["kernel"]), 4)
                    cell = sigmoid(keep) * cell + sigmoid(write) * np.tanh(new)
                    state = sigmoid(read) * np.tanh(cell)
                    output[row, column, part] = state
    return output


def test_output_is_that_of_numpy(setting):
    layer, params, hidden = setting
    np.testing.assert_allclose(apply(layer, params, hidden), reference(params, hidden), atol=1e-5)


def test_gradients_are_finite_differences_of_numpy(setting):
    layer, params, hidden = setting
    weights = np.random.default_rng(1).normal(size=hidden.shape)
    gradients = jax.grad(lambda params: (apply(layer, params, hidden) * weights).sum())(params)
    leaves, tree = jax.tree.flatten(jax.tree.map(np.float64, params))
    for number, gradient in enumerate(jax.tree.leaves(gradients)):
        for index in list(np.ndindex(gradient.shape))[::7]:
            sums = []
            for change in (1e-5, -1e-5):
                moved = [leaf.copy() for leaf in leaves]
                moved[number][index] += change
                sums.append((reference(jax.tree.unflatten(tree, moved), np.float64(hidden)) * weights).sum())
            assert gradient[index] == pytest.approx((sums[0] - sums[1]) / 2e-5, abs=1e-5, rel=1e-5)


CONFIG = EncoderConfig(
    vocab_size=60,
    block=LSTMBlock(),
    embeddings=BertEmbeddings(positions="none"),
    layers=2,
    width=WIDTH,
    pooler_activation="relu",
    init_stddev=0.3,
)


@pytest.fixture(scope="module")
def encoder():
    """Return (encoder, its params, tokens of `EXAMPLES_BT`, the first column of each example)."""
    tokens_BT = np.random.default_rng(2).integers(5, 60, EXAMPLES_BT.shape)
    params = Encoder(CONFIG).init(jax.random.key(1), tokens_BT)["params"]
    return Encoder(CONFIG), params, tokens_BT, np.array([[0, 3, -1], [0, 1, 5]])


def test_the_summary_is_the_last_state_of_each_direction(encoder):
    module, params, tokens_BT, _ = encoder
    whole = module.apply({"params": params}, tokens_BT)
    summary_BD = np.concatenate([whole.hidden[:, -1, : WIDTH // 2], whole.hidden[:, 0, WIDTH // 2 :]], axis=-1)
    pooled_BD = np.maximum(summary_BD @ params["pooler"]["kernel"] + params["pooler"]["bias"], 0)
    np.testing.assert_allclose(whole.pooled_BND[:, 0], pooled_BD, atol=1e-6)


SEGMENTS_BT = np.array([[0, 0, 1, 0, 1, 0, 0], [0, 0, 0, 1, 1, 0, 0]])  # the first and the last of row 1 are one text


@pytest.mark.slow
def test_texts_of_a_siamese_pair_are_read_alone_and_compared(encoder):
    _, params, tokens_BT, summaries_BN = encoder
    module = Encoder(dataclasses.replace(CONFIG, block=LSTMBlock(pairs="siamese")))
    pooler = module.init(jax.random.key(3), tokens_BT)["params"]["pooler"]
    assert pooler["kernel"].shape == (4 * WIDTH, WIDTH)
    inputs = {"params": params | {"pooler": pooler}}, tokens_BT, SEGMENTS_BT, None, EXAMPLES_BT, summaries_BN
    whole, read = module.apply(*inputs), module.apply(*inputs, read_BK=np.array([[4], [2]]))
    np.testing.assert_allclose(read.pooled_BND, whole.pooled_BND, atol=1e-6)

    def text(row, example, segment):
        columns = np.flatnonzero((EXAMPLES_BT[row] == example) & (SEGMENTS_BT[row] == segment))
        if not len(columns):
            return np.zeros(WIDTH)
        at = slice(row, row + 1), columns
        alone = Encoder(CONFIG).apply({"params": params}, tokens_BT[at], SEGMENTS_BT[at]).hidden[0]
        np.testing.assert_allclose(whole.hidden[row, columns], alone, atol=1e-6)
        return np.concatenate([alone[-1, : WIDTH // 2], alone[0, WIDTH // 2 :]])

    for row, example in ((0, 1), (0, 2), (1, 1), (1, 2), (1, 3)):
        one, other = text(row, example, 0), text(row, example, 1)
        summary = np.concatenate([one, other, np.abs(one - other), one * other])
        pooled = np.maximum(summary @ pooler["kernel"] + pooler["bias"], 0)
        np.testing.assert_allclose(whole.pooled_BND[row, example - 1], pooled, atol=1e-6)


def test_taps_of_attention_are_refused(encoder):
    module, params, tokens_BT, _ = encoder
    _, state = module.apply({"params": params}, tokens_BT, mutable=[taps.CAPTURED])
    assert set(state[taps.CAPTURED]) == {"hidden"}
    with pytest.raises(ValueError, match="captured has no attention; choose from hidden"):
        module.apply({"params": params, taps.CAPTURED: {"attention": None}}, tokens_BT, mutable=[taps.CAPTURED])
    with pytest.raises(ValueError, match="taps has no 'head_mask'; choose from layer_mask"):
        module.apply({"params": params, taps.TAPS: {taps.HEAD_MASK: np.ones((2, 12))}}, tokens_BT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block": {"kind": "gru"}}, "model.block.kind='gru' is unknown; choose one of bert, modern, xlnet"),
        ({"block": {"kind": "bert", "pairs": "siamese"}}, "unknown configuration key 'model.block.pairs'"),
        (
            {"block": {"kind": "lstm", "pairs": "both"}},
            "model.block.pairs='both' is unknown; choose one of joint",
        ),
        ({"block": {"kind": "lstm"}, "width": 7}, "needs an even model.width, not 7"),
        (
            {"block": {"kind": "lstm"}, "sharing": "all"},
            "model.block.kind=lstm does not go with model.sharing=all; set model.sharing=none",
        ),
        (
            {"block": {"kind": "lstm"}, "activation_bits": 8},
            "model.block.kind=lstm does not go with model.activation_bits=8; set model.activation_bits=0",
        ),
        (
            {"block": {"kind": "lstm"}},
            "model.block.kind=lstm reads tokens in order; set model.embeddings.positions=none",
        ),
    ],
)
def test_settings_that_do_not_go_with_an_lstm(settings, message):
    with pytest.raises(UserError, match=message):
        from_dict({"model": settings})
