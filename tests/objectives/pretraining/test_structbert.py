"""StructBERT: which runs of tokens are shuffled, and how their order is predicted."""

import dataclasses

import jax
import numpy as np

from bertjax.data.batch import Draw
from bertjax.objectives.pretraining.structbert import StructBERT
from tests import batches, ragged

LENGTHS = np.array([40, 60, 64, 30] * 8)


def features_of(objective: StructBERT, epoch: int = 0) -> dict[str, np.ndarray]:
    examples = ragged.random(LENGTHS, np.arange(len(LENGTHS)))
    examples = dataclasses.replace(examples, labels={"order": np.zeros(len(LENGTHS), np.int32)})
    return objective.features(ragged.one_a_row(examples), Draw(0, np.full(len(LENGTHS), epoch)))


def originals() -> np.ndarray:
    return ragged.one_a_row(ragged.random(LENGTHS, np.arange(len(LENGTHS)))).tokens_to_rows(
        ragged.random(LENGTHS, np.arange(len(LENGTHS))).tokens, 0
    )


def test_shuffled_runs_keep_their_tokens_and_are_all_predicted():
    batch, tokens_BT = features_of(StructBERT(shuffle_rate=0.5)), originals()
    changed = orders = 0
    for row in range(len(LENGTHS)):
        columns = batch["order_positions_BK"][row][batch["order_weights_BK"][row] > 0]
        labels = batch["order_labels_BK"][row][batch["order_weights_BK"][row] > 0]
        np.testing.assert_array_equal(labels, tokens_BT[row, columns])
        for run in columns.reshape(-1, 3):
            assert run.tolist() == [run[0], run[0] + 1, run[0] + 2]
            assert sorted(batch["tokens_BT"][row, run]) == sorted(tokens_BT[row, run])
            changed += (batch["tokens_BT"][row, run] != tokens_BT[row, run]).any()
            orders += 1
    assert orders > 50 and 0.7 < changed / orders < 0.95  # one order of six is the original


def test_nothing_else_is_moved_and_no_mask_is_shuffled():
    batch, tokens_BT = features_of(StructBERT(shuffle_rate=0.5)), originals()
    touched = np.zeros(tokens_BT.shape, bool)
    for name in ("mlm", "order"):
        rows, spots = np.nonzero(batch[f"{name}_weights_BK"])
        columns = batch[f"{name}_positions_BK"][rows, spots]
        assert not touched[rows, columns].any()  # the two never meet
        touched[rows, columns] = True
    assert batch["order_dropped_B"].sum() == 0
    np.testing.assert_array_equal(batch["tokens_BT"][~touched], tokens_BT[~touched])


def test_the_share_of_runs_that_are_shuffled_is_the_rate():
    epochs = [features_of(StructBERT(shuffle_rate=0.2), epoch) for epoch in range(8)]
    eligible = features_of(StructBERT(shuffle_rate=1.0))
    share = sum(batch["order_weights_BK"].sum() for batch in epochs) / 8 / eligible["order_weights_BK"].sum()
    assert abs(share - 0.2) < 0.03
    assert (epochs[0]["tokens_BT"] != epochs[1]["tokens_BT"]).any()


def test_the_order_is_restored_by_the_head_of_masked_tokens():
    batch = batches.make() | {
        f"order_{name}_BK": batches.make(seed=1)[f"mlm_{name}_BK"] for name in ("positions", "labels", "weights")
    }
    batch = {name.replace("nsp_", "structure_"): values for name, values in batch.items()}
    batch["order_dropped_B"] = np.zeros(8, np.int32)
    objective = StructBERT()
    module = objective.model(batches.ENCODER)
    params = batches.filled(batches.param_shapes(objective, module.config, batch))
    assert set(params["heads"]) == {"mlm", "structure"}
    apply = jax.jit(lambda params, batch: objective.apply(module, params, batch))
    logits = apply(params, batch)
    swapped = apply(params, batch | {"mlm_positions_BK": batch["order_positions_BK"]})
    np.testing.assert_allclose(swapped["mlm"], logits["order"], rtol=1e-5, atol=1e-6)
    sums = jax.eval_shape(lambda: objective.terms(module, params, None, batch, jax.random.key(0), False)[0])
    assert set(sums) == set(objective.weights(batch)) == {"mlm", "order", "structure"}
