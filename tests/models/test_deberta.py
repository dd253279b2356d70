"""Disentangled attention: against loops over queries and keys, in packed rows, and with few positions read."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.models.blocks.deberta import bucket_of
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from tests import batches

# Distances 0 to 2 have a bucket each, 3 to 9 share one, and larger ones the last.
CONFIG = dataclasses.replace(batches.ENCODER, layers=2, **batches.DISENTANGLED)
TOKENS_BT = np.arange(10, 26)[None]


@functools.cache
def params_of(config: EncoderConfig) -> dict:
    init = functools.partial(Encoder(config).init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    return batches.filled(jax.eval_shape(init)["params"], scale=0.6)


def test_attention_is_that_of_the_formula():
    """(q_i k_j + q_i K_d + k_j Q_d) / sqrt(3 C), query by query and key by key, in the first layer."""
    params = params_of(CONFIG)
    _, state = Encoder(CONFIG).apply({"params": params}, TOKENS_BT, mutable=["captured"])
    leaves = jax.tree.map(np.float64, params)
    layer = jax.tree.map(lambda leaf: leaf[0], leaves["layers"]["attention"])

    def norm(states, own):
        centered = states - states.mean(-1, keepdims=True)
        scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + CONFIG.norm_epsilon)
        return scaled * own["scale"] + own["bias"]

    words_TD = norm(
        leaves["embeddings"]["word"][TOKENS_BT[0]] + leaves["embeddings"]["segment"][0], leaves["embeddings"]["norm"]
    )
    table_SD = norm(leaves["shared"]["embedding"], leaves["shared"]["norm"])
    (query_THC, query_SHC), (key_THC, key_SHC) = (
        [(x @ layer[name]["kernel"] + layer[name]["bias"]).reshape(len(x), 2, 8) for x in (words_TD, table_SD)]
        for name in ("query", "key")
    )
    # As relations of a teacher read them: only their products are scaled.
    np.testing.assert_allclose(state["captured"]["queries"][0][0], query_THC, rtol=1e-3, atol=1e-5)
    expected_HTT = np.zeros((2, 16, 16))
    for head, i, j in np.ndindex(expected_HTT.shape):
        place = np.clip(bucket_of(np.array(i - j), 4, 10) + 4, 0, 7)
        q, k = query_THC[i, head], key_THC[j, head]
        expected_HTT[head, i, j] = (q @ k + q @ key_SHC[place, head] + k @ query_SHC[place, head]) / np.sqrt(3 * 8)
    expected_HTT = np.exp(expected_HTT - expected_HTT.max(-1, keepdims=True))
    expected_HTT /= expected_HTT.sum(-1, keepdims=True)
    np.testing.assert_allclose(state["captured"]["attention"][0][0], expected_HTT, rtol=1e-3, atol=1e-5)
    assert expected_HTT.std() > 0.02
