import dataclasses
import multiprocessing
from typing import NamedTuple

import numpy as np
import pytest

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Vocabulary
from bertjax.data.formats.segment_pairs import SegmentPairs
from bertjax.data.masking import TokenMasking, mask, predictions
from bertjax.data.pipeline import Feed, LocalBatches, iterate
from bertjax.data.plan import open_or_make
from bertjax.errors import UserError

T, ROWS = 48, 8


def features(placed: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
    """What a masked language model with sentence pairs asks for."""
    masking = TokenMasking()
    masked = mask(placed, draw, masking)
    predicted = predictions(placed, masked.chosen, masking.capacity(placed.seq_len))
    return {
        "tokens_BT": placed.tokens_to_rows(masked.tokens, placed.vocabulary.pad_id),
        "pair_labels_BN": placed.examples_to_rows(placed.ragged.labels["is_random"]),
        **{f"mlm_{name}": array for name, array in predicted.items()},
    }


class At(NamedTuple):
    task: str
    seq_len: int
    first: int
    rows: int


def at(step: int) -> At:
    return At("mlm", T, step * ROWS, ROWS)


def fails_at_two(step: int) -> At:
    if step == 2:
        raise UserError("step 2 has no task; name one")
    return at(step)


@pytest.fixture(scope="module")
def feed(store) -> Feed:
    plan = open_or_make(store, "train", SegmentPairs(), T, 0)
    return Feed(plan.examples, plan.rows_RN, features, Vocabulary.of(store.tokenizer), T, seed=0, shuffle=True)


def local(feed: Feed, host: int = 0, hosts: int = 1) -> LocalBatches:
    return LocalBatches(at, {("mlm", T): feed}, host, hosts)


def assert_equal(batch: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert batch.keys() == expected.keys()
    for name in batch:
        np.testing.assert_array_equal(batch[name], expected[name], err_msg=name)


@pytest.mark.parametrize("step", [0, 7, 1000])
@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_see_slices_of_one_global_batch(feed, step, hosts):
    expected = local(feed)(step)
    assert expected["tokens_BT"].shape == (ROWS, T) and (expected["mlm_weights_BK"].sum(axis=1) > 0).all()
    slices = [local(feed, host, hosts)(step) for host in range(hosts)]
    assert_equal({name: np.concatenate([part[name] for part in slices]) for name in expected}, expected)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_any_number_of_workers_gives_the_same_batches(feed, workers):
    make = local(feed, 1, 2)
    steps = [*range(998, 1003)]
    for step, batch in zip(steps, iterate(make, 998, 1003, workers, prefetch=2), strict=True):
        assert_equal(batch, make(step))
    assert not multiprocessing.active_children()


def test_the_stream_starts_anywhere(feed):
    make = local(feed)
    for start in (0, 7, 10**9):
        assert_equal(next(iterate(make, start, start + 1, 0, prefetch=1)), make(start))
    assert list(iterate(make, 5, 5, 0, prefetch=1)) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_user_comes_through_as_itself(feed, workers):
    make = dataclasses.replace(local(feed), at=fails_at_two)
    batches = iterate(make, 0, 5, workers, prefetch=1)
    assert_equal(next(batches), make(0))
    assert_equal(next(batches), make(1))
    with pytest.raises(UserError) as error:
        next(batches)
    assert str(error.value) == "step 2 has no task; name one"


def test_an_abandoned_stream_leaves_no_process(feed):
    batches = iterate(local(feed), 0, 10**6, workers=1, prefetch=2)
    next(batches)
    assert multiprocessing.active_children()
    batches.close()
    assert not multiprocessing.active_children()


def test_an_epoch_has_each_row_once_in_an_order_of_its_own(feed):
    total = len(feed.rows_RN)
    epochs = [feed.batch(np.arange(epoch * total, (epoch + 1) * total))["example_ids_BN"][:, 0] for epoch in (0, 1)]
    for order in epochs:
        np.testing.assert_array_equal(np.sort(order), np.arange(total))
    assert (epochs[0] != epochs[1]).any() and (epochs[0] != np.arange(total)).any()


def test_an_example_is_masked_anew_in_the_next_epoch_only(feed):
    total = len(feed.rows_RN)
    planned = dataclasses.replace(feed, shuffle=False)
    first, again, later = (planned.batch(np.arange(start, start + 4)) for start in (0, 0, total))
    assert_equal(again, first)
    np.testing.assert_array_equal(later["example_ids_BN"], [[0], [1], [2], [3]])
    assert (later["tokens_BT"] != first["tokens_BT"]).any()


def test_a_batch_across_the_edge_of_an_epoch(feed):
    total = len(feed.rows_RN)
    across = feed.batch(np.arange(total - 3, total + 3))
    apart = [feed.batch(np.arange(total - 3, total)), feed.batch(np.arange(total, total + 3))]
    assert_equal(across, {name: np.concatenate([part[name] for part in apart]) for name in across})


def test_missing_ordinals_give_rows_of_padding(feed):
    batch = feed.batch(np.array([-1, 5, -1]))
    alone = feed.batch(np.array([5]))
    assert_equal({name: array[1:2] for name, array in batch.items()}, alone)
    np.testing.assert_array_equal(batch["examples_BT"][[0, 2]], 0)
    np.testing.assert_array_equal(batch["example_ids_BN"][[0, 2]], -1)
    np.testing.assert_array_equal(batch["mlm_weights_BK"][[0, 2]], 0)
    assert (feed.batch(np.array([-1, -1]))["tokens_BT"] == feed.vocabulary.pad_id).all()


def test_packed_rows_hold_the_same_masked_examples(feed):
    """Rows of up to two examples, planned by hand; all that an example has stays as it is in a row of its own."""
    alone = dataclasses.replace(feed, shuffle=False).batch(np.arange(4))
    rows_RN = np.array([[3, -1], [1, 2], [0, -1]], np.int32)
    packed = dataclasses.replace(feed, rows_RN=rows_RN, seq_len=2 * T, shuffle=False).batch(np.arange(3))
    np.testing.assert_array_equal(packed["example_ids_BN"], rows_RN)
    lengths = (alone["examples_BT"] > 0).sum(axis=1)
    np.testing.assert_array_equal(packed["summary_positions_BN"], [[0, 0], [0, lengths[1]], [0, 0]])
    for name in ("tokens_BT", "segments_BT", "positions_BT"):
        one, two = (alone[name][example, : lengths[example]] for example in (1, 2))
        np.testing.assert_array_equal(packed[name][1, : lengths[1] + lengths[2]], np.concatenate([one, two]))
    predicted = [alone["mlm_labels_BK"][example][alone["mlm_weights_BK"][example] > 0] for example in (1, 2)]
    np.testing.assert_array_equal(
        packed["mlm_labels_BK"][1][packed["mlm_weights_BK"][1] > 0], np.concatenate(predicted)
    )


def test_rows_that_do_not_divide_over_hosts(feed):
    with pytest.raises(UserError, match="a batch of 8 rows does not divide over 3 hosts"):
        local(feed, 0, 3)(0)
