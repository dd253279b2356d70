"""The parts of EuroBERT: grouped queries, RMS norms, SwiGLU and a decoder of its own."""

import dataclasses

import jax
import numpy as np
import pytest

from bertjax.models.bert import BertEmbeddings
from bertjax.models.blocks.llama import LlamaBlock, WordEmbeddings
from bertjax.models.config import EncoderConfig
from bertjax.models.presets import PRESETS
from bertjax.models.rotary import apply_rotary, rotary_at
from bertjax.runtime.errors import UserError
from tests.models.encoding import encode, params_of

# Heads 0 and 1 of queries read head 0 of keys and values, heads 2 and 3 read head 1.
CONFIG = dataclasses.replace(
    PRESETS["eurobert_210m"],
    vocab_size=100,
    layers=2,
    width=16,
    heads=4,
    feedforward=24,
    max_positions=16,
    block=LlamaBlock(key_value_heads=2, rotary_base=100.0),
)


def by_hand(params: dict, tokens_T: np.ndarray, head_mask_LH: np.ndarray) -> np.ndarray:
    """Return the last states [T, D] of one example, computed in float64 with one loop over heads."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    rotary = rotary_at(np.arange(len(tokens_T))[None], 4, 100.0)

    def norm(states, scale):
        return states / np.sqrt(np.mean(states**2, -1, keepdims=True) + CONFIG.norm_epsilon) * scale["scale"]

    states_TD = params["embeddings"]["word"][tokens_T]
    for number in range(CONFIG.layers):
        layer = jax.tree.map(lambda leaf, number=number: leaf[number], params["layers"])
        attention, normed_TD = layer["attention"], norm(states_TD, layer["attention_norm"])
        query, key, value = (
            (normed_TD @ attention[name]["kernel"]).reshape(len(tokens_T), -1, 4) for name in ("query", "key", "value")
        )
        query, key = (np.asarray(apply_rotary(x[None].astype(np.float32), rotary))[0] for x in (query, key))
        contexts = []
        for head in range(4):
            logits_TT = query[:, head] @ key[:, head // 2].T / 2.0  # sqrt(4)
            weights_TT = np.exp(logits_TT - logits_TT.max(-1, keepdims=True))
            context = weights_TT / weights_TT.sum(-1, keepdims=True) @ value[:, head // 2]
            contexts.append(context * head_mask_LH[number, head])
        states_TD = states_TD + np.concatenate(contexts, -1) @ attention["output"]["kernel"]
        normed_TD = norm(states_TD, layer["output_norm"])
        opened = normed_TD @ layer["intermediate"]["kernel"]
        expanded = opened / (1 + np.exp(-opened)) * (normed_TD @ layer["gate"]["kernel"])
        states_TD = states_TD + expanded @ layer["output"]["kernel"]
    return norm(states_TD, params["final_norm"])


def test_the_encoder_equals_a_loop_over_heads_and_a_mask_is_per_head_of_queries():
    params, tokens_T = params_of(CONFIG), np.arange(10, 26)
    ones_LH = np.ones((2, 4), np.float32)
    without = ones_LH.copy()
    without[1, 2] = 0.0  # head 3, which reads the same keys and values, stays
    for mask_LH in (ones_LH, without):
        hidden = encode(CONFIG, params, {"tokens_BT": tokens_T[None]}, {"head_mask": mask_LH}).hidden[0]
        np.testing.assert_allclose(hidden, by_hand(params, tokens_T, mask_LH), rtol=1e-3, atol=1e-3)
    assert np.abs(by_hand(params, tokens_T, without) - by_hand(params, tokens_T, ones_LH)).max() > 0.05


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"block": LlamaBlock(key_value_heads=5)}, "model.block.key_value_heads=5 does not divide model.heads=12; ch"),
        ({"width": 36, "heads": 12}, "model.block.kind=llama rotates pairs of channels, and heads are 3 wide"),
        ({"embeddings": BertEmbeddings()}, "model.block.kind=llama has positions of its own; set model.embeddings."),
        ({"embeddings": WordEmbeddings(segments=2)}, "model.embeddings.kind=words has no table of segments for model"),
    ],
)
def test_invalid_parts(fields, message):
    with pytest.raises(UserError, match=f"^{message}"):
        EncoderConfig(**{"block": LlamaBlock(), "embeddings": WordEmbeddings()} | fields)
