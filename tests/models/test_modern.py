"""The parts of ModernBERT: rotary positions, local layers, gates, norms before and no biases."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.blocks.modern import ModernBlock
from bertjax.models.encoder import Encoder
from bertjax.models.presets import PRESETS
from bertjax.models.rotary import apply_rotary, rotary_at
from tests.models.encoding import encode, params_of

# Layer 0 is global, 1 and 2 are local, 3 is global.
CONFIG = dataclasses.replace(
    PRESETS["modernbert_base"],
    vocab_size=100,
    layers=4,
    width=16,
    heads=2,
    feedforward=24,
    max_positions=16,
    block=ModernBlock(window=2),
)
LOCAL = dataclasses.replace(CONFIG, layers=2, block=ModernBlock(window=2, global_every=2))


def packed() -> dict:
    """Two examples of 7 and 8 tokens in a row of 16."""
    examples_T = np.array([1] * 7 + [2] * 8 + [0])
    return {
        "tokens_BT": np.arange(10, 26)[None],
        "positions_BT": np.array([[*range(7), *range(8), 0]]),
        "examples_BT": examples_T[None],
        "summary_positions_BN": np.array([[0, 7]]),
    }


def test_a_product_of_rotated_queries_and_keys_follows_from_their_distance():
    draw = np.random.default_rng(0)
    query, key = (np.float32(draw.normal(size=(1, 1, 1, 8))) for _ in range(2))

    def product(at, other):
        turned = (apply_rotary(x, rotary_at(jnp.array([[p]]), 8, 10_000.0)) for p, x in ((at, query), (other, key)))
        return float(jnp.sum(next(turned) * next(turned)))

    for distance in (0, 1, 5, -3):
        products = [product(start + distance, start) for start in (3, 11, 100)]
        np.testing.assert_allclose(products, products[0], rtol=1e-4)
    assert abs(product(4, 3) - product(6, 3)) > 0.1
    np.testing.assert_allclose(product(0, 0), float((query * key).sum()), rtol=1e-6)


def test_hidden_states_do_not_change_if_all_positions_are_shifted():
    params, batch = params_of(CONFIG), packed()
    attention = params["layers"]["attention"]
    sharp = attention | {"query": {"kernel": 8 * attention["query"]["kernel"]}}
    params = params | {"layers": params["layers"] | {"attention": sharp}}
    moved = batch | {"positions_BT": batch["positions_BT"] + 37}
    plain, after = encode(CONFIG, params, batch).hidden, encode(CONFIG, params, moved).hidden
    np.testing.assert_allclose(after[:, :15], plain[:, :15], rtol=1e-4, atol=1e-4)
    turned_round = batch | {"positions_BT": batch["positions_BT"][:, ::-1]}
    assert np.abs(encode(CONFIG, params, turned_round).hidden - plain).max() > 0.01


def test_a_local_layer_sees_its_window_and_a_global_one_everything():
    """In row and column of the gradient; the second layer of two is local."""
    params, tokens_BT = params_of(LOCAL), np.arange(10, 26)[None]

    @jax.jit
    def attention(params):
        _, state = Encoder(LOCAL).apply({"params": params}, tokens_BT, mutable=["captured"])
        return state["captured"]["attention"]

    near_TT = np.abs(np.arange(16)[:, None] - np.arange(16)) <= 2
    first, second = np.asarray(attention(params))
    assert first.min() > 0 and second[:, :, ~near_TT].max() == 0 and second[:, :, near_TT].min() > 0


@pytest.mark.slow
@pytest.mark.parametrize("layers, reach", [(2, 2), (3, 4)])
@pytest.mark.parametrize("read", [False, True])
def test_no_gradient_comes_from_outside_the_windows(layers, reach, read):
    """Only local layers count: the values of the global layer are zero, so that its output is the embeddings."""
    config = dataclasses.replace(CONFIG, layers=layers, block=ModernBlock(window=2, global_every=layers))
    params, tokens_BT = params_of(config), np.arange(10, 26)[None]
    value = params["layers"]["attention"]["value"]["kernel"].copy()
    value[0] = 0.0
    attention = params["layers"]["attention"] | {"value": {"kernel": value}}
    params = params | {"layers": params["layers"] | {"attention": attention}}

    def number(word_VD):
        changed = params | {"embeddings": params["embeddings"] | {"word": word_VD}}
        taps = {"read_BK": np.array([[8]])} if read else {}
        hidden = Encoder(config).apply({"params": changed}, tokens_BT, **taps).hidden
        return jnp.sum(jnp.sin(3 * (hidden[0, 0] if read else hidden[0, 8])))

    gradient = np.abs(jax.jit(jax.grad(number))(params["embeddings"]["word"]))[10:26].max(axis=1)
    np.testing.assert_array_equal(gradient > 0, np.abs(np.arange(16) - 8) <= reach)


@pytest.mark.slow
def test_kernels_that_add_to_the_hidden_states_start_smaller_in_deeper_encoders():
    """By 1 / sqrt(2 L), as transformers' `ModernBertPreTrainedModel._init_weights` draws them."""
    config = dataclasses.replace(CONFIG, layers=8, width=64, feedforward=128)
    layers = Encoder(config).init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]["layers"]
    drawn = 0.02 * 0.88  # of a normal that is cut at two deviations
    for kernel in (layers["attention"]["query"], layers["intermediate"], layers["gate"]):
        np.testing.assert_allclose(kernel["kernel"].std(), drawn, rtol=0.02)
    for kernel in (layers["attention"]["output"], layers["output"]):
        np.testing.assert_allclose(kernel["kernel"].std(), drawn / 4, rtol=0.02)
