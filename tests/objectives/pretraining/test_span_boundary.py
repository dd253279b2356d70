"""SpanBERT: boundaries, places in a span, and what a prediction depends on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.objectives.pretraining.span_boundary import SpanBoundary, places
from tests import batches, ragged

LENGTHS, IDS = np.array([40, 60, 64, 30]), np.arange(4)


def features(objective: SpanBoundary) -> dict[str, np.ndarray]:
    examples = ragged.random(LENGTHS, IDS)
    return objective.features(ragged.one_a_row(examples), ragged.first_epoch(examples))


def test_boundaries_are_the_nearest_tokens_that_are_not_predicted():
    batch = features(SpanBoundary(longest=64))
    predicted_BT = np.zeros(batch["tokens_BT"].shape, bool)
    rows, spots = np.nonzero(batch["mlm_weights_BK"])
    columns = batch["mlm_positions_BK"][rows, spots]
    predicted_BT[rows, columns] = True
    assert predicted_BT.sum() > 20
    for row, spot, column in zip(rows, spots, columns):
        left, right = column, column
        while predicted_BT[row, left]:
            left -= 1
        while predicted_BT[row, right]:
            right += 1
        assert batch["sbo_left_positions_BK"][row, spot] == left
        assert batch["sbo_right_positions_BK"][row, spot] == right
        assert batch["sbo_places_BK"][row, spot] == column - left - 1
        assert batch["sbo_weights_BK"][row, spot] == 1.0
    assert batch["sbo_places_BK"].max() >= 3  # there are spans


def test_tokens_too_deep_in_a_span_are_not_predicted_from_its_boundaries():
    batch, all_of_it = features(SpanBoundary(longest=2)), features(SpanBoundary(longest=64))
    expected = (all_of_it["sbo_places_BK"] < 2) & (all_of_it["mlm_weights_BK"] > 0)
    np.testing.assert_array_equal(batch["sbo_weights_BK"] > 0, expected)
    assert 0 < expected.sum() < (all_of_it["mlm_weights_BK"] > 0).sum()
    assert batch["sbo_places_BK"].max() == 1


def test_places_count_adjoining_tokens_on_both_sides():
    chosen = np.array([0, 1, 1, 1, 0, 0, 1, 0, 1, 1], bool)
    before, after = places(chosen)
    assert before.tolist() == [0, 0, 1, 2, 0, 0, 0, 0, 0, 1]
    assert after.tolist() == [0, 2, 1, 0, 0, 0, 0, 0, 1, 0]


def test_a_prediction_reads_the_boundaries_and_the_place_only():
    """Its gradient with respect to the last hidden states is zero within the span and everywhere else."""
    batch = batches.make(rows=2) | {
        "sbo_left_positions_BK": np.full((2, 1), 2, np.int32),
        "sbo_right_positions_BK": np.full((2, 1), 6, np.int32),
        "sbo_places_BK": np.ones((2, 1), np.int32),
    }
    batch["mlm_positions_BK"] = np.full((2, 1), 4, np.int32)
    module = SpanBoundary().model(batches.ENCODER)
    params = batches.filled(batches.param_shapes(SpanBoundary(), module.config, batch))

    def of_hidden(model, hidden_BTD):
        left_BKD, right_BKD = (
            jnp.take_along_axis(hidden_BTD, batch[f"sbo_{side}_positions_BK"][..., None], axis=1)
            for side in ("left", "right")
        )
        return model.head("sbo", left_BKD, right_BKD, batch["sbo_places_BK"], model.word_VE)

    def gradient(model):
        hidden_BTD = model.encode(batch).hidden
        return jax.grad(lambda hidden: of_hidden(model, hidden)[..., 7].sum())(hidden_BTD)

    gradient = jax.jit(functools.partial(module.apply, method=gradient))({"params": params})
    reached = np.abs(gradient).max(axis=-1) > 0
    assert np.flatnonzero(reached[0]).tolist() == [2, 6]


def test_logits_read_the_boundaries_and_the_places():
    batch = batches.make(rows=2)
    extra = {name: np.full((2, 8), column, np.int32) for name, column in (("left", 1), ("right", 5))}
    batch |= {f"sbo_{side}_positions_BK": values for side, values in extra.items()}
    module = SpanBoundary().model(batches.ENCODER)
    batch["sbo_places_BK"] = np.arange(8, dtype=np.int32)[None].repeat(2, axis=0)
    params = batches.filled(batches.param_shapes(SpanBoundary(), module.config, batch))
    apply = jax.jit(functools.partial(SpanBoundary().apply, module))
    logits = apply(params, batch)
    assert logits["sbo"].shape == logits["mlm"].shape
    assert len({row.tobytes() for row in np.asarray(logits["sbo"][0])}) == 8  # the place distinguishes them
    other = batch | {"mlm_positions_BK": np.zeros_like(batch["mlm_positions_BK"])}
    np.testing.assert_array_equal(apply(params, other)["sbo"], logits["sbo"])


def test_both_losses_are_summed_over_their_weights():
    objective, batch = SpanBoundary(longest=3), features(SpanBoundary(longest=3))
    weights = objective.weights(batch)
    assert set(weights) == {"mlm", "sbo"} and objective.loss_weights(weights, step=0) == {}
    assert weights["sbo"] == batch["sbo_weights_BK"].sum() < weights["mlm"]
    logits = {name: jnp.zeros((*batch["mlm_labels_BK"].shape, 8)) for name in ("mlm", "sbo")}
    labels = batch | {"mlm_labels_BK": np.zeros_like(batch["mlm_labels_BK"])}
    sums, metrics = objective.terms_of(logits, labels)
    np.testing.assert_allclose(sums["sbo"], weights["sbo"] * np.log(8), rtol=1e-6)
    assert metrics["sbo_accuracy"][1] == weights["sbo"]
