"""MPNet's distance biases, its streams with position compensation, and which tokens each state depends on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.models.blocks.mpnet import MPNetBlock, bucket_of
from bertjax.models.encoder import Encoder
from bertjax.models.presets import PRESETS
from bertjax.models.streams import CompensatedStreams
from tests.models.encoding import encode, params_of

# Buckets widen from distance 2 on, and end at 6.
CONFIG = dataclasses.replace(
    PRESETS["mpnet_base"], vocab_size=60, layers=3, width=16, heads=2, feedforward=24, max_positions=16,
    block=MPNetBlock(buckets=8, max_distance=6),
)  # fmt: skip
# Two examples of 7 and 6 tokens. [MASK] is 5; the predicted tokens are 30 and more.
MASK = 5
BATCH = {
    "tokens_BT": np.array([[10, 11, MASK, 12, MASK, MASK, 13, 14, MASK, 15, MASK, 16, 17, 0]]),
    "positions_BT": np.array([[*range(7), *range(6), 0]]),
    "examples_BT": np.array([[1] * 7 + [2] * 6 + [0]]),
    "summary_positions_BN": np.array([[0, 7]]),
}
READ_BK = np.array([[2, 4, 5, 8, 10, 0]])  # the last place is empty
ANSWERS_BK = np.array([[30, 31, 32, 33, 34, -1]])
RANK_BT = np.array([[0, 0, 2, 0, 3, 1, 0, 0, 1, 0, 2, 0, 0, 0]])
RANK_BK = RANK_BT[0, READ_BK[0]]
STREAMS = CompensatedStreams(READ_BK, RANK_BT, ANSWERS_BK)


def predict(params, batch=BATCH, config=CONFIG, **others):
    return encode(config, params, batch, streams=STREAMS, **others).hidden[0]


def test_attention_has_the_bias_of_each_distance_in_every_layer():
    """The other parameters of attention are zero, so that only biases are left in the softmax."""
    params = params_of(CONFIG)
    attention = params["layers"]["attention"]
    silent = attention | {name: jax.tree.map(np.zeros_like, attention[name]) for name in ("query", "key")}
    params = params | {"layers": params["layers"] | {"attention": silent}}
    _, state = Encoder(CONFIG).apply({"params": params}, np.arange(10, 22)[None], mutable=["captured"])
    distances_TT = np.subtract.outer(np.arange(12), np.arange(12))
    expected_HTT = np.exp(np.moveaxis(params["shared"]["bias"][bucket_of(distances_TT, 8, 6)], -1, 0))
    expected_HTT /= expected_HTT.sum(axis=-1, keepdims=True)
    assert expected_HTT.std() > 0.01
    for attention_BHTT in state["captured"]["attention"]:
        np.testing.assert_allclose(attention_BHTT[0], expected_HTT, rtol=1e-5)


def dependence(table: str, rows: np.ndarray, batch=BATCH) -> np.ndarray:
    """Return which rows of an embedding table each of the K query states depends on; bool [K, rows]."""
    params = params_of(CONFIG)

    def of_table(values):
        changed = params | {"embeddings": params["embeddings"] | {table: values}}
        return jnp.sum(jnp.sin(3 * predict(changed, batch)), axis=-1)

    jacobian_KNE = jax.jit(jax.jacrev(of_table))(jnp.asarray(params["embeddings"][table]))
    return np.abs(np.asarray(jacobian_KNE))[:, rows].max(axis=-1) > 0


EXAMPLES = np.array([1, 1, 1, 2, 2])  # of the five predicted tokens


def test_positions_of_all_tokens_are_seen():
    positions = dependence("position", 2 + np.arange(7))[:5]
    assert positions[:3].all() and positions[3:, :6].all() and not positions[3:, 6].any()


def test_the_last_prediction_is_that_of_a_row_in_which_the_others_are_known():
    """The streams equal plain attention on the text that a prediction sees, if the model has one layer."""
    config = dataclasses.replace(CONFIG, layers=1)
    params = params_of(config)
    predicted = predict(params, config=config)
    for place in range(5):
        column, tokens_BT = READ_BK[0, place], BATCH["tokens_BT"].copy()
        for other in range(5):
            if EXAMPLES[other] == EXAMPLES[place] and RANK_BK[other] < RANK_BK[place]:
                tokens_BT[0, READ_BK[0, other]] = ANSWERS_BK[0, other]
        plain = encode(config, params, BATCH | {"tokens_BT": tokens_BT}).hidden[0, column]
        np.testing.assert_allclose(predicted[place], plain, rtol=1e-4, atol=1e-5)
