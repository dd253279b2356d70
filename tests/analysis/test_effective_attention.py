"""Effective attention on matrices whose left null space is known, and against its definition in float64."""

import functools

import jax
import numpy as np
import pytest
from scipy import linalg

from bertjax.analysis import effective_attention

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
    member_BNT = effective_attention.members(examples_BT, slots)
    space = effective_attention.space(values_BTHR, output_HRD, member_BNT)
    both = effective_attention.effective(attention_BHTT, space)
    correlations = [effective_attention.correlations(attention_BHTT, each, member_BNT) for each in both]
    return space, space.constrained_rank_BNH, both, correlations


def of_packed(values_BTHR=VALUES, output_HRD=OUTPUT):
    return jax.device_get(computed(values_BTHR, output_HRD, ATTENTION, EXAMPLES, slots=2))


def transform(row: int, slot: int, head: int, values_BTHR=VALUES, output_HRD=OUTPUT) -> np.ndarray:
    """T of one head and one example; float64."""
    return values_BTHR[row, SPANS[row, slot], head].astype(np.float64) @ output_HRD[head].astype(np.float64)


def removed(attention_TT: np.ndarray, matrix_TD: np.ndarray) -> np.ndarray:
    """A minus its projection on the left null space of a matrix, by the basis that scipy gives of it."""
    null_TK = linalg.null_space(matrix_TD.T)
    return attention_TT - attention_TT @ null_TK @ null_TK.T


@pytest.mark.parametrize("place", SPANS)
@pytest.mark.parametrize("head", range(HEADS))
def test_packed_examples_have_the_definition_in_float64(place, head):
    row, slot = place
    span = SPANS[place]
    space, constrained_rank_BNH, maps, correlations = of_packed()
    raw_TT, matrix_TD = ATTENTION[row, head, span, span].astype(np.float64), transform(row, slot, head)
    with_ones = np.concatenate([matrix_TD, np.ones((len(matrix_TD), 1))], axis=1)
    assert space.rank_BNH[row, slot, head] == np.linalg.matrix_rank(matrix_TD) == min(4, len(matrix_TD))
    assert constrained_rank_BNH[row, slot, head] == np.linalg.matrix_rank(with_ones) == min(5, len(matrix_TD))
    for map_BHTT, correlation_BNH, matrix in zip(maps, correlations, (matrix_TD, with_ones), strict=True):
        expected_TT = removed(raw_TT, matrix)
        np.testing.assert_allclose(map_BHTT[row, head, span, span], expected_TT, atol=2e-6)
        expected = np.corrcoef(raw_TT.ravel(), expected_TT.ravel())[0, 1]
        np.testing.assert_allclose(correlation_BNH[row, slot, head], expected, atol=1e-5)


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


def test_removing_twice_removes_nothing_more_and_what_was_removed_has_no_effect():
    space, _, maps, _ = of_packed()
    for each, map_BHTT in enumerate(maps):
        again_BHTT = effective_attention.effective(map_BHTT, space)[each]
        np.testing.assert_allclose(again_BHTT, map_BHTT, atol=2e-6)
        lost_BHTT = ATTENTION - map_BHTT
        assert np.abs(lost_BHTT[1, 0, :9, :9] @ transform(1, 0, 0)).max() < 1e-5
        # The two parts of a row are orthogonal: their squares add up to the row's.
        parts_BHT = (lost_BHTT**2).sum(axis=-1) + (map_BHTT**2).sum(axis=-1)
        np.testing.assert_allclose(parts_BHT[:, :, :9], (ATTENTION**2).sum(axis=-1)[:, :, :9], atol=1e-5)


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


def test_a_map_of_equal_weights_has_no_correlation():
    uniform_BHTT = np.where((EXAMPLES[:, :, None] == EXAMPLES[:, None])[:, None], 0.125, 0.0).repeat(HEADS, axis=1)
    member_BNT = effective_attention.members(EXAMPLES, 2)
    assert np.isnan(effective_attention.correlations(uniform_BHTT, ATTENTION, member_BNT)).all()
