"""What holds for every layer type: packing, reading few positions, executions, and a sharding rule for all params."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.bert import BertBlock, BertEmbeddings
from bertjax.models.blocks import BLOCKS
from bertjax.models.blocks.mobilebert import MobileBertBlock, MobileBertEmbeddings
from bertjax.models.blocks.mpnet import MPNetBlock
from bertjax.models.config import Execution
from tests import batches
from tests.models.encoding import encode, params_of

SETTINGS = {
    "bert": {},
    "albert": {"embeddings": BertEmbeddings(8), "sharing": "all"},
    "groups": {"layers": 4, "sharing": "attention", "sharing_groups": 2},
    "fixed": {"block": BertBlock(("next",))},
    "rotary": batches.ROTARY,
    "local": batches.LOCAL,
    "llama": batches.GROUPED,
    "xlnet": batches.RELATIVE,
    "deberta": batches.DISENTANGLED,
    "mpnet": {"block": MPNetBlock(buckets=8, max_distance=6)},
    "mobilebert": {"block": MobileBertBlock(inner_width=8, feedforwards=2), "embeddings": MobileBertEmbeddings(8)},
    "lstm": batches.LSTM,
}
ENCODERS = {name: dataclasses.replace(batches.ENCODER, **settings) for name, settings in SETTINGS.items()}
EXECUTIONS = (Execution(unroll=True), Execution(remat="dots"), Execution(remat="full"))
# Every execution for BERT's layer, and one for each other kind of layer and for groups of shared ones.
OTHERS = ("groups", "local", "llama", "xlnet", "deberta", "mpnet", "mobilebert", "lstm")
EXECUTED = [("bert", each) for each in EXECUTIONS]
EXECUTED += [pytest.param(*each, marks=pytest.mark.slow) for each in zip(OTHERS, itertools.cycle(EXECUTIONS))]
# Two examples of 5 and 6 tokens, in one row of 12 and in separate rows.
ONE, TWO = np.arange(10, 15), np.arange(50, 56)
TOGETHER = {
    "tokens_BT": np.concatenate([ONE, TWO, [0]])[None],
    "segments_BT": np.array([[0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0]]),
    "positions_BT": np.array([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 0]]),
    "examples_BT": np.array([[1] * 5 + [2] * 6 + [0]]),
    "summary_positions_BN": np.array([[0, 5]]),
}
APART = {
    "tokens_BT": np.stack([np.append(ONE, 0), TWO]),
    "segments_BT": np.array([[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]]),
    "positions_BT": np.array([[0, 1, 2, 3, 4, 0], [0, 1, 2, 3, 4, 5]]),
    "examples_BT": np.array([[1, 1, 1, 1, 1, 0], [1] * 6]),
    "summary_positions_BN": np.array([[0], [0]]),
}
NAMES = [pytest.param(name, marks=[] if name in ("bert", *OTHERS) else pytest.mark.slow) for name in ENCODERS]
every_block = pytest.mark.parametrize("name", NAMES)


def close(actual, expected, tolerance: float = 1e-5) -> None:
    def compare(one, other):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(1.0, np.abs(other).max()))

    jax.tree.map(compare, actual, expected)


@every_block
def test_packed_examples_equal_examples_in_separate_rows_and_do_not_leak(name):
    config = ENCODERS[name]
    params = params_of(config)

    @functools.partial(jax.grad, has_aux=True)
    def gradient_of_the_first(word_VE):
        changed = params | {"embeddings": params["embeddings"] | {"word": word_VE}}
        together = encode(config, changed, TOGETHER)
        return jnp.sum(jnp.sin(together.hidden[0, :5])), (together.hidden[0], together.pooled_BND[0])

    gradient_VE, (hidden_TD, pooled_ND) = jax.jit(gradient_of_the_first)(params["embeddings"]["word"])
    apart = encode(config, params, APART)
    close(hidden_TD[:5], apart.hidden[0, :5])
    close(hidden_TD[5:11], apart.hidden[1])
    close(pooled_ND, apart.pooled_BND[:, 0])
    sizes_V = np.abs(gradient_VE).max(axis=1)
    assert sizes_V[TWO].max() == 0 < sizes_V[ONE].min()


@every_block
def test_reading_few_positions_is_exact_and_so_are_its_gradients(name):
    config, read_BK = ENCODERS[name], np.array([[3, 8, 10, 0]])
    params = params_of(config)

    @functools.partial(jax.jit, static_argnums=1)
    def computed(params, is_read):
        def number(params):
            encoded = encode(config, params, TOGETHER, **{"read_BK": read_BK} if is_read else {})
            hidden = encoded.hidden[0] if is_read else encoded.hidden[0, read_BK[0]]
            return jnp.sum(jnp.sin(3 * hidden)) + jnp.sum(encoded.pooled_BND**2), (hidden, encoded.pooled_BND)

        return jax.grad(number, has_aux=True)(params)

    close(computed(params, True), computed(params, False))


@pytest.mark.parametrize(("name", "execution"), EXECUTED, ids=lambda value: getattr(value, "remat", value))
def test_the_execution_changes_nothing(name, execution):
    """With dropout, whose decisions are those of the forward pass when it is computed again."""
    config = dataclasses.replace(ENCODERS[name], dropout=0.1, attention_dropout=0.1 * (name != "lstm"))

    @functools.partial(jax.jit, static_argnums=1)
    def computed(params, execution):
        def number(params):
            encoded = encode(dataclasses.replace(config, execution=execution), params, TOGETHER, key=jax.random.key(3))
            return jnp.sum(jnp.sin(3 * encoded.hidden[0, :11])) + jnp.sum(encoded.pooled_BND**2)

        return jax.value_and_grad(number)(params)

    params = params_of(ENCODERS[name])
    close(computed(params, execution), computed(params, Execution()), 2e-5)


def test_every_kind_is_tried():
    assert {encoder.block.kind for encoder in ENCODERS.values()} == set(BLOCKS.kinds)
