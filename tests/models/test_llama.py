"""The parts of EuroBERT: grouped queries, RMS norms, SwiGLU and a decoder of its own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.export import Export
from bertjax.inference.masked import masked_lm
from bertjax.models import cut, kernels
from bertjax.models.bert import BertEmbeddings
from bertjax.models.blocks.llama import LlamaBlock, WordEmbeddings
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.presets import PRESETS
from bertjax.models.rotary import apply_rotary, rotary_at
from bertjax.models.vocabulary_heads import DecoderHead
from bertjax.objectives.pretraining.electra import Electra
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.runtime.errors import UserError
from bertjax.training.config import MeshConfig
from bertjax.training.parallel.attention import choose_attention
from bertjax.training.parallel.make_mesh import fill_mesh
from bertjax.training.param_paths import path_of
from tests import batches
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


def packed() -> dict:
    """Two examples of 7 and 8 tokens in a row of 16."""
    return {
        "tokens_BT": np.arange(10, 26)[None],
        "positions_BT": np.array([[*range(7), *range(8), 0]]),
        "examples_BT": np.array([[1] * 7 + [2] * 8 + [0]]),
        "summary_positions_BN": np.array([[0, 7]]),
    }


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


def test_only_heads_on_examples_have_biases_and_the_decoder_is_not_tied():
    params = batches.param_shapes(BERT(), CONFIG)
    leaves = {path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    assert {path for path in leaves if path.endswith("bias")} == {"heads/nsp/classifier/bias"}
    assert {path for path in leaves if path.startswith("heads/mlm/")} == {"heads/mlm/word"}
    assert leaves["heads/mlm/word"].shape == (128, 16)
    head, hidden, words = DecoderHead(CONFIG), jnp.ones((1, 1, 16)), jnp.ones((128, 16))
    own = head.init(jax.random.key(0), hidden, words)
    logits = head.apply(own, hidden, words)
    np.testing.assert_array_equal(logits, head.apply(own, hidden, 2 * words))
    assert float(logits[0, 0, 100:].max()) == float(jnp.finfo(jnp.float32).min), "padding of the vocabulary"


def test_kernels_compute_grouped_queries():
    encoder = dataclasses.replace(CONFIG, width=128, heads=4, attention_dropout=0.0)
    for name in (kernels.FUSED, kernels.SPLASH):
        assert choose_attention(name, encoder, "tpu", "TPU v4") == name
    config = dataclasses.replace(CONFIG, execution=Execution(remat="full"))
    np.testing.assert_allclose(
        encode(config, params_of(CONFIG), packed()).hidden,
        encode(CONFIG, params_of(CONFIG), packed()).hidden,
        rtol=1e-6,
    )


def test_heads_that_share_keys_are_not_cut():
    params = {"layers": params_of(CONFIG)["layers"]}
    for change in (
        lambda: cut.heads(params, CONFIG, np.zeros((2, 1), int)),
        lambda: cut.with_zero_heads(params, CONFIG),
    ):
        with pytest.raises(ValueError, match="key_value_heads=2 serve 4 heads of queries together"):
            change()
    single = dataclasses.replace(CONFIG, block=LlamaBlock())
    kept = np.array([[3, 1], [0, 2]])
    smaller, config = cut.heads(params_of(single), single, kept)
    mask_LH = np.zeros((2, 4), np.float32)
    np.put_along_axis(mask_LH, kept, 1.0, axis=1)
    expected = encode(single, params_of(single), packed(), {"head_mask": mask_LH}).hidden
    np.testing.assert_allclose(encode(config, smaller, packed()).hidden, expected, rtol=1e-4, atol=1e-4)


def test_one_head_of_keys_for_each_head_of_queries_has_one_spelling():
    """Otherwise `init_from`, `merge` and `compress` would refuse the same architecture."""
    spelled = dataclasses.replace(CONFIG, block=LlamaBlock(key_value_heads=4))
    assert spelled == dataclasses.replace(CONFIG, block=LlamaBlock()) and not spelled.block.key_value_heads
    assert not spelled.differences(dataclasses.replace(CONFIG, block=LlamaBlock()))
    _, smaller = cut.heads(params_of(spelled), spelled, np.array([[3, 1], [0, 2]]))
    assert (smaller.heads, smaller.block.key_value_heads) == (2, 0)
    assert CONFIG.replace({"block.key_value_heads": 4}).architecture()["block"]["key_value_heads"] == 0


def test_a_mesh_divides_keys_and_values():
    """One head of keys and values is 4 wide, which no more than 4 devices along `tensor` and `fsdp` divide."""
    encoder = dataclasses.replace(CONFIG, feedforward=32, block=LlamaBlock(key_value_heads=1))
    assert encoder.block.tensor_widths(encoder) == (16, 16, 32, 4)
    devices = jax.devices() * 16
    assert fill_mesh(MeshConfig(tensor=2), "gathered", [encoder], devices).fsdp == 2
    whole = dataclasses.replace(encoder, block=LlamaBlock())
    assert fill_mesh(MeshConfig(tensor=2), "gathered", [whole], devices).fsdp == 8


def test_the_generator_of_electra_has_its_share_of_the_heads():
    generator = Electra(generator_share=0.5).generator(CONFIG)
    assert (generator.heads, generator.block.key_value_heads) == (2, 1)
    generator = Electra(generator_share=0.25).generator(CONFIG)
    assert (generator.heads, generator.block.key_value_heads) == (1, 0)  # 0: one for each head of queries


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


def test_a_decoder_of_its_own_predicts_masked_tokens():
    """Its settings are not read, which may name code of a user."""
    params = {"encoder": {}, "heads": {"mlm": {"word": np.zeros((4, 4))}}}
    assert masked_lm(Export({}, CONFIG, params, None, {})) == MaskedLM()
