"""The layer of a bidirectional LSTM: parity with numpy, gradients, and the examples of a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.bert import BertEmbeddings
from bertjax.models.blocks.lstm import LSTMBlock, LSTMLayer
from bertjax.models.config import EncoderConfig
from bertjax.models.visibility import LayerInputs, Visibility

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
    params = layer.init(jax.random.key(0), LayerInputs(hidden_BTD, Visibility(jnp.array(EXAMPLES_BT))))["params"]
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params)
    return layer, params, hidden_BTD


def apply(layer, params, hidden_BTD, examples_BT=EXAMPLES_BT, queries=None):
    return layer.apply({"params": params}, LayerInputs(hidden_BTD, Visibility(jnp.array(examples_BT)), queries=queries))


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
