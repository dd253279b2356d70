"""Rollout against a loop, integrated gradients against their axioms, heads on replaced states."""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.analysis import attribution
from bertjax.analysis.parts import identifiability
from bertjax.models import replacing
from bertjax.models.bert import BertEmbeddings
from bertjax.models.blocks.mobilebert import MobileBertBlock, MobileBertEmbeddings
from bertjax.models.heads import MaskedLMHead
from bertjax.models.layers import Dense
from bertjax.models.model import HeadSpec, Model
from tests import batches

CONFIG, BATCH = batches.ENCODER, batches.make(3)
# The first row has two examples.
BATCH["examples_BT"][0] = np.where(np.arange(16) < 5, 1, 2 * (BATCH["examples_BT"][0] > 0))
BATCH["positions_BT"][0] = np.where(np.arange(16) < 5, np.arange(16), np.maximum(np.arange(16) - 5, 0))
BATCH["summary_positions_BN"] = np.array([[0, 5], [0, 0], [0, 0]], np.int32)
MODEL = Model(CONFIG, {"mlm": HeadSpec(MaskedLMHead), "label": HeadSpec(Dense, {"features": 3})})


def masked_lm(model, batch, key=None):
    hidden_BKD = model.encode(batch, key, batch["mlm_positions_BK"]).hidden
    return model.head("mlm", hidden_BKD, model.word_VE)


def classes(model, batch, key=None):
    nothing_more_BK = jnp.zeros((len(batch["tokens_BT"]), 0), jnp.int32)
    return model.head("label", model.encode(batch, key, nothing_more_BK).pooled_BND)


def both(model, batch):
    return masked_lm(model, batch), classes(model, batch)


@functools.cache
def params_of(config=CONFIG):
    model = MODEL.clone(config=config)
    return batches.filled(jax.eval_shape(lambda: model.init(jax.random.key(0), BATCH, method=both))["params"])


@functools.partial(jax.jit, static_argnames="config")
def embedded(params, batch, config=CONFIG):
    return attribution.embedded(config, params, batch)


@functools.partial(jax.jit, static_argnames="config")
def predictions(params, batch, embedded_BTE=None, config=CONFIG):
    """Logits of `classes`, with these embeddings in place of those of the tokens if they are given."""
    with contextlib.nullcontext() if embedded_BTE is None else replacing.with_embeddings(embedded_BTE):
        return MODEL.clone(config=config).apply({"params": params}, batch, method=classes)


def test_rollout_is_that_of_a_loop_over_layers_tokens_and_heads():
    layers, heads, length = 3, 2, 5
    attention_LHTT = np.random.default_rng(0).dirichlet(np.ones(length), (layers, heads, length))
    shares = np.eye(length)
    for layer in range(layers):
        mixed = np.zeros((length, length))
        for query in range(length):
            weights = [sum(attention_LHTT[layer, h, query, t] for h in range(heads)) / heads for t in range(length)]
            weights[query] += 1.0
            for token, weight in enumerate(weights):
                mixed[query] += weight / sum(weights) * shares[token]
        shares = mixed
        np.testing.assert_allclose(attribution.rollout(attention_LHTT)[layer], shares, atol=1e-12)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)


def predicted(inputs_BTE, params, batch):
    """The log-probability of class 1 of each example; 0 for an empty slot."""
    with replacing.with_embeddings(inputs_BTE):
        logits_BNC = MODEL.apply({"params": params}, batch, method=classes)
    exists_BN = (batch["examples_BT"][:, None] == jnp.arange(1, 3)[:, None]).any(axis=-1)
    return jnp.where(exists_BN, jax.nn.log_softmax(logits_BNC)[..., 1], 0.0)


def test_attributions_of_packed_examples_are_complete_and_independent():
    params = jax.tree.map(np.copy, params_of())
    params["heads"]["label"]["kernel"] *= 300.0  # predictions that differ by a nat
    inputs_BTE = embedded(params, BATCH)
    masked = BATCH | {"tokens_BT": np.where(np.arange(16) % 5, 3, BATCH["tokens_BT"])}  # [CLS] of each example stays
    baseline_BTE = embedded(params, masked)
    result = attribution.integrated_gradients(
        predicted, inputs_BTE, baseline_BTE, BATCH["examples_BT"], 2, params, BATCH
    )
    print(f"gaps {result.gap_BN}, differences {result.prediction_BN - result.baseline_BN}, panels {result.panels}")
    assert result.is_complete and result.gap_BN.max() < 0.01
    assert np.abs(result.prediction_BN - result.baseline_BN)[[0, 0, 1, 2], [0, 1, 0, 0]].min() > 0.02
    own_BNC = predictions(params, BATCH)
    np.testing.assert_allclose(result.prediction_BN[0], jax.nn.log_softmax(own_BNC)[0, :, 1], atol=1e-4)
    np.testing.assert_allclose(result.tokens_BT[:, [0, 5, 10, 15]], 0.0, atol=1e-6)  # equal to the baseline
    assert not result.tokens_BT[BATCH["examples_BT"] == 0].any()
    # The second example of the first row, alone in the row.
    length = int((BATCH["examples_BT"][0] == 2).sum())
    alone = BATCH | {"examples_BT": np.where(np.arange(3)[:, None], BATCH["examples_BT"], 0)}
    alone["examples_BT"][0, :length] = 1
    alone["summary_positions_BN"] = np.zeros((3, 2), np.int32)
    moved = [np.array(each) for each in (inputs_BTE, baseline_BTE)]
    for each in moved:
        each[0] = np.roll(each[0], -5, axis=0)
    separate = attribution.integrated_gradients(predicted, *moved, alone["examples_BT"], 2, params, alone)
    expected_T = result.tokens_BT[0, 5 : 5 + length]
    np.testing.assert_allclose(separate.tokens_BT[0, :length], expected_T, atol=0.01 * np.abs(expected_T).sum())


ALBERT = {"sharing": "all", "embeddings": BertEmbeddings(8)}
MOBILE = {"embeddings": MobileBertEmbeddings(8), "block": MobileBertBlock(inner_width=8)}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [ALBERT, MOBILE], ids=["albert", "mobile"])
def test_a_replaced_embedding_is_all_that_the_model_reads(settings):
    config = dataclasses.replace(CONFIG, **settings)
    params = params_of(config)
    other = BATCH | {"tokens_BT": BATCH["tokens_BT"][:, ::-1]}
    replaced = predictions(params, other, embedded(params, BATCH, config), config)
    np.testing.assert_allclose(replaced, predictions(params, BATCH, config=config), atol=1e-6)
    assert np.abs(replaced - predictions(params, other, config=config)).max() > 1e-4


HEADS, WIDTH = 3, 12  # of heads of width 4
RNG = np.random.default_rng(0)
OUTPUT = RNG.normal(size=(HEADS, 4, WIDTH)).astype(np.float32)
# Two packed examples of 7 and 3 tokens, and one of 9; the last columns are padding.
EXAMPLES = np.array([[1] * 7 + [2] * 3 + [0] * 2, [1] * 9 + [0] * 3])
VALUES = RNG.normal(size=(2, 12, HEADS, 4)).astype(np.float32)
SPANS = {(0, 0): slice(0, 7), (0, 1): slice(7, 10), (1, 0): slice(0, 9)}


def attention_of(examples_BT: np.ndarray) -> np.ndarray:
    logits_BHTT = RNG.normal(size=(len(examples_BT), HEADS, *examples_BT.shape[1:] * 2))
    weights = np.where((examples_BT[:, :, None] == examples_BT[:, None])[:, None], np.exp(logits_BHTT), 0.0)
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


ATTENTION = attention_of(EXAMPLES)


@functools.partial(jax.jit, static_argnames="slots")
def computed(values_BTHR, output_HRD, attention_BHTT, examples_BT, slots):
    member_BNT = identifiability.members(examples_BT, slots)
    space = identifiability.effective_space(values_BTHR, output_HRD, member_BNT)
    both = identifiability.effective_attention(attention_BHTT, space)
    correlations = [identifiability.correlations(attention_BHTT, each, member_BNT) for each in both]
    return space, space.constrained_rank_BNH, both, correlations


def of_packed(values_BTHR=VALUES, output_HRD=OUTPUT):
    return jax.device_get(computed(values_BTHR, output_HRD, ATTENTION, EXAMPLES, slots=2))


def transform(row: int, slot: int, head: int, values_BTHR=VALUES, output_HRD=OUTPUT) -> np.ndarray:
    """T of one head and one example; float64."""
    return values_BTHR[row, SPANS[row, slot], head].astype(np.float64) @ output_HRD[head].astype(np.float64)


def test_nothing_is_computed_for_padding_and_empty_slots():
    space, constrained_rank_BNH, maps, correlations = of_packed()
    assert space.rank_BNH[1, 1].tolist() == constrained_rank_BNH[1, 1].tolist() == [0] * HEADS
    assert np.isnan(correlations[0][1, 1]).all() and np.isfinite(correlations[0][EXAMPLES.max(axis=1) > 1]).all()
    for map_BHTT in maps:
        other = (EXAMPLES[:, :, None] != EXAMPLES[:, None]) | (EXAMPLES == 0)[:, :, None]
        assert not np.moveaxis(map_BHTT, 1, -1)[other].any()


def test_the_output_of_a_head_stays_the_same_and_the_rows_of_the_constrained_map_sum_to_1():
    _, _, (effective_BHTT, constrained_BHTT), _ = of_packed()
    for (row, slot), span in SPANS.items():
        for head in range(HEADS):
            matrix_TD = transform(row, slot, head)
            output_TD = ATTENTION[row, head, span, span] @ matrix_TD
            for map_BHTT in (effective_BHTT, constrained_BHTT):
                np.testing.assert_allclose(map_BHTT[row, head, span, span] @ matrix_TD, output_TD, atol=1e-5)
            np.testing.assert_allclose(constrained_BHTT[row, head, span, span].sum(axis=-1), 1.0, atol=2e-6)
    assert np.abs(effective_BHTT[1, :, :9].sum(axis=-1) - 1.0).max() > 0.01
    assert np.abs(effective_BHTT - ATTENTION)[1, :, :9, :9].max() > 0.01


def test_a_sentence_that_is_no_longer_than_the_heads_are_wide_keeps_its_attention():
    _, _, maps, correlations = of_packed()
    for map_BHTT, correlation_BNH in zip(maps, correlations, strict=True):
        np.testing.assert_allclose(map_BHTT[0, :, 7:10, 7:10], ATTENTION[0, :, 7:10, 7:10], atol=2e-6)
        np.testing.assert_allclose(correlation_BNH[0, 1], 1.0, atol=1e-5)


def test_known_null_spaces():
    """Tokens whose values are equal share their weight; tokens whose values are 0 lose it."""
    values_BTHR = np.zeros((1, 4, 1, 2), np.float32)
    values_BTHR[0, :2, 0] = [3.0, 1.0]  # tokens 0 and 1 are equal, token 2 is 0, token 3 differs
    values_BTHR[0, 3, 0] = [-1.0, 3.0]
    output_HRD = np.eye(2, 5, dtype=np.float32)[None]
    attention_BHTT = np.tile(np.float32([0.5, 0.1, 0.3, 0.1]), (1, 1, 4, 1))
    space, constrained_rank_BNH, (effective_BHTT, constrained_BHTT), _ = jax.device_get(
        computed(values_BTHR, output_HRD, attention_BHTT, np.ones((1, 4), np.int32), slots=1)
    )
    assert (space.rank_BNH.item(), constrained_rank_BNH.item()) == (2, 3)
    np.testing.assert_allclose(effective_BHTT[0, 0, 0], [0.3, 0.3, 0.0, 0.1], atol=1e-6)
    np.testing.assert_allclose(constrained_BHTT[0, 0, 0], [0.3, 0.3, 0.3, 0.1], atol=1e-6)


def test_rank_ignores_what_is_rounding_in_float32():
    """A head of width 4 whose values have rank 2 but for an error of a few eps."""
    low_rank = VALUES[..., :2] @ RNG.normal(size=(2, 4)).astype(np.float32)
    space, *_ = of_packed(low_rank.astype(np.float32))
    assert space.rank_BNH[1, 0].tolist() == [2] * HEADS
    weak = low_rank + 1e-3 * VALUES
    assert of_packed(weak.astype(np.float32))[0].rank_BNH[1, 0].tolist() == [4] * HEADS


def test_the_bias_of_values_has_no_effect_under_the_probability_constraint():
    bias_HR = RNG.normal(size=(HEADS, 4)).astype(np.float32)
    _, _, without, _ = of_packed()
    _, _, with_bias, _ = of_packed(VALUES + bias_HR)
    np.testing.assert_allclose(with_bias[1], without[1], atol=5e-6)
    assert np.abs(with_bias[0] - without[0]).max() > 0.01
