"""Capitals, and tokens that occur again in a document: features, labels and losses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.data.config import DataConfig, TokenizerConfig
from bertjax.data.preparation.prepare import prepare
from bertjax.objectives.pretraining.span_boundary import SpanBoundary
from bertjax.objectives.pretraining.token_labels import CapitalPrediction
from bertjax.runtime.errors import UserError
from tests import batches, ragged


def test_a_tokenizer_without_capitals_is_refused(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n\n".join(f"Every Good Boy ate {count} pears." for count in range(40)))
    lower = TokenizerConfig(kind="wordpiece", vocab_size=60, lowercase=True)
    where = DataConfig(str(tmp_path / "corpus.txt"), heldout_share=0.5, tokenizer=lower, store=str(tmp_path))
    with pytest.raises(UserError, match="^objective.kind=capitals learns which pieces .*: data.tokenizer.model=FOLDER"):
        CapitalPrediction().bind(prepare(where))


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
