"""MPNet's objective: the order, its features beside masked language modeling, and what it learns from."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.data.masking import TokenMasking
from bertjax.models.blocks.mpnet import MPNetBlock
from bertjax.models.compensation import CompensatedStreams
from bertjax.models.presets import PRESETS
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.permuted_mlm import PermutedMaskedLM
from bertjax.runtime.errors import UserError
from tests import batches, ragged

LENGTHS, IDS = np.array([40, 60, 64, 30]), np.arange(4)
ENCODER = dataclasses.replace(
    PRESETS["mpnet_base"], vocab_size=507, layers=2, width=16, heads=2, feedforward=24, max_positions=64,
    dropout=0.0, attention_dropout=0.0, block=MPNetBlock(buckets=8, max_distance=20),
)  # fmt: skip


def features(objective: MaskedLM, seed: int = 0, epoch: int = 0) -> dict[str, np.ndarray]:
    examples = ragged.random(LENGTHS, IDS)
    draw = dataclasses.replace(ragged.first_epoch(examples, seed), epochs=np.full(4, epoch))
    placed = ragged.one_a_row(examples)
    columns_BT = np.broadcast_to(np.arange(64), (4, 64))
    batch = {
        "examples_BT": placed.tokens_to_rows(np.ones_like(examples.tokens)),
        "positions_BT": columns_BT,
        "segments_BT": 0 * columns_BT,
        "summary_positions_BN": np.zeros((4, 1), np.int32),
    }
    return batch | objective.features(placed, draw)


def test_features_are_those_of_masked_language_modeling_and_an_order():
    batch, plain = features(PermutedMaskedLM()), features(MaskedLM())
    rank_BT = batch.pop("rank_BT")
    assert batch.keys() == plain.keys()
    for name, values in plain.items():
        np.testing.assert_array_equal(batch[name], values, err_msg=name)
    for row in range(4):
        columns = plain["mlm_positions_BK"][row, plain["mlm_weights_BK"][row] > 0]
        assert sorted(rank_BT[row, columns]) == list(range(1, len(columns) + 1))
        assert list(rank_BT[row, columns]) != sorted(rank_BT[row, columns])
        assert np.count_nonzero(rank_BT[row]) == len(columns)


def test_orders_change_with_the_epoch_and_are_repeatable():
    first, again, later = (features(PermutedMaskedLM(), epoch=epoch)["rank_BT"] for epoch in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != later).any(axis=1).all()


@dataclasses.dataclass(frozen=True)
class Tight(TokenMasking):
    """Has eight places for predictions per row, however many it chooses."""

    def capacity(self, seq_len, row_examples):
        return 8


def test_every_query_sees_each_position_once_also_beyond_the_capacity():
    batch = features(PermutedMaskedLM(masking=Tight(rate=0.4)))
    assert (batch["mlm_dropped_B"] > 0).all()
    columns_BK = batch["mlm_positions_BK"]
    streams = CompensatedStreams(columns_BK, batch["rank_BT"], batch["mlm_weights_BK"] > 0)
    queries = streams.queries(np.zeros((4, 64 + 2 * 8, 1)), is_last=True)
    visible = np.asarray(streams.visibility(batch["examples_BT"]).mask_BQT(queries.columns_BQ, queries.rank_BQ))
    for row, used in zip(*np.nonzero(batch["mlm_weights_BK"])):
        content = np.concatenate([np.arange(64), columns_BK[row]])
        seen = np.sort(content[visible[row, used]])
        np.testing.assert_array_equal(seen, np.arange(LENGTHS[row]), err_msg=f"{row} {used}")


def logits_of(objective, params, batch):
    apply = functools.partial(objective.apply, objective.model(ENCODER), method=objective.logits)
    return jax.jit(lambda params: apply(params, batch)["mlm"])(params)


def test_parameters_are_those_of_masked_language_modeling_and_so_are_predictions_without_answers():
    """The first prediction in the order has none before it: it is that of masked language modeling."""
    permuted, plain = PermutedMaskedLM(), MaskedLM()
    batch = features(permuted)
    shapes = batches.param_shapes(permuted, ENCODER, batch)
    of_mlm = batches.param_shapes(plain, ENCODER, batch)
    del of_mlm["encoder"]["pooler"]  # which nothing trains
    assert jax.tree.structure(shapes) == jax.tree.structure(of_mlm)
    params = batches.filled(shapes)
    ours, theirs = (np.asarray(logits_of(objective, params, batch))[..., :507] for objective in (permuted, plain))
    ranks_BK = np.take_along_axis(batch["rank_BT"], batch["mlm_positions_BK"], axis=1)
    is_used_BK = batch["mlm_weights_BK"] > 0
    # Symbols and the tokens around them see no answer either.
    is_first_BK = is_used_BK & (ranks_BK == 1)
    difference_BK = np.abs(ours - theirs).max(axis=-1)
    assert difference_BK[is_first_BK].max() < 1e-5 < 1e-4 < difference_BK[is_used_BK & ~is_first_BK].min()
    apply = functools.partial(permuted.apply, permuted.model(ENCODER), method=permuted.mlm_logits)
    filled = jax.jit(lambda params: apply(params, batch))(params)
    np.testing.assert_allclose(np.asarray(filled)[is_used_BK][:, :507], theirs[is_used_BK], rtol=1e-5, atol=1e-5)


def test_a_prediction_depends_on_the_answers_before_it_only():
    objective = PermutedMaskedLM()
    batch = features(objective)
    params = batches.filled(batches.param_shapes(objective, ENCODER, batch))
    plain = logits_of(objective, params, batch)
    ranks_BK = np.take_along_axis(batch["rank_BT"], batch["mlm_positions_BK"], axis=1)
    used = np.flatnonzero(batch["mlm_weights_BK"][1])
    for place in used[:3]:
        labels_BK = batch["mlm_labels_BK"].copy()
        labels_BK[1, place] = 500
        changed = np.abs(logits_of(objective, params, batch | {"mlm_labels_BK": labels_BK}) - plain).max(axis=-1) > 0
        np.testing.assert_array_equal(changed[1, used], ranks_BK[1, used] > ranks_BK[1, place])
        assert not changed[[0, 2, 3]].any()


def test_the_loss_has_a_gradient_for_every_parameter_of_layers_and_biases():
    objective = PermutedMaskedLM(masking=TokenMasking(rate=0.3))
    batch = features(objective)
    params = jax.tree.map(jnp.asarray, batches.filled(batches.param_shapes(objective, ENCODER, batch)))

    @jax.jit
    @jax.grad
    def gradient(params):
        sums, _ = objective.terms(objective.model(ENCODER), params, None, batch, jax.random.key(1), False)
        return sums["mlm"]

    of_encoder = gradient(params)["encoder"]
    assert np.count_nonzero(of_encoder["shared"]["bias"]) == 2 * 7  # no distance is in bucket 4, as in T5
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(of_encoder["layers"]))


@pytest.mark.parametrize(
    "preset, fields, message",
    [
        (
            "roberta_base",
            {},
            "objective.kind=permuted_mlm needs model.block.kind=mpnet, not bert; model.preset=",
        ),
        ("mpnet_base", {"direction": "left_to_right"}, "objective.kind=permuted_mlm predicts in an order of its own, "),
    ],
)
def test_encoders_that_do_not_fit(preset, fields, message):
    encoder = dataclasses.replace(PRESETS[preset], vocab_size=507, **fields)
    with pytest.raises(UserError, match=f"^{message}"):
        PermutedMaskedLM().model(encoder)
