"""Rows that are added to a trained encoder's tables."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.models import vocabulary
from bertjax.models.bert import BertEmbeddings
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead
from tests import batches

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


def test_new_positions_repeat_the_old_ones():
    params = make()
    old = params["encoder"]["embeddings"]["position"]
    extended = vocabulary.add_positions(params, batches.ENCODER, 40)
    assert np.array_equal(extended["encoder"]["embeddings"]["position"], np.concatenate([old, old, old[:8]]))
    extended["encoder"]["embeddings"]["position"] = old
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, extended, params)))


def test_rows_before_the_first_position_stay_before_it():
    config = dataclasses.replace(batches.ENCODER, max_positions=3, embeddings=BertEmbeddings(position_offset=2))
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    extended = vocabulary.add_positions({"position": table}, config, 7)
    np.testing.assert_array_equal(extended["position"], table[[0, 1, 2, 3, 4, 2, 3, 4, 2]])
