"""Batches: slices of hosts, worker processes, epochs, and sources."""

import dataclasses
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Vocabulary
from bertjax.data.formats.segments import SegmentPairs
from bertjax.data.masking import TokenMasking, gather_masked, mask
from bertjax.data.order import Epochs, Turns
from bertjax.data.pipeline import Feed, LocalBatches, iterate
from bertjax.data.plan import Spec, open_or_make
from bertjax.runtime import terminal
from bertjax.runtime.errors import UserError
from tests.batches import assert_equal
from tests.waiting import wait_until

T, ROWS = 48, 8
PAIRS = SegmentPairs()


def features(placed: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
    """Return the features of masked language modeling with sentence pairs."""
    masking = TokenMasking()
    masked = mask(placed, draw, masking)
    predicted = gather_masked(placed, masked.chosen, masking.capacity(placed.seq_len, 1))
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


def make_feed(store, shuffle=True, examples=PAIRS, **choices) -> Feed:
    plan = open_or_make(store, Spec("train", examples, seq_len=T, seed=0, **choices))
    epochs = Epochs((plan,), "rows", seed=0, shuffle=shuffle)
    return Feed((epochs,), Turns((1.0,)), features, Vocabulary.of(store.tokenizer), T)


@pytest.fixture(scope="module", params=[1, 8], ids=["alone", "packed"])
def feed(request, store) -> Feed:
    return make_feed(store, row_examples=request.param)


@pytest.fixture(scope="module")
def planned(store) -> Feed:
    """One example a row, in the order of the plan."""
    return make_feed(store, shuffle=False, row_examples=1)


def local(feed: Feed, host: int = 0, hosts: int = 1) -> LocalBatches:
    return LocalBatches(at, {("mlm", T): feed}, (host,), hosts)


@pytest.mark.parametrize("step, hosts", [(0, 2), (7, 4), (1000, 3), (7, 2 * ROWS)])
def test_hosts_see_slices_of_one_global_batch(feed, step, hosts):
    """Rows keep their places, by which dropout is drawn; the rest is padding, of which a host may have nothing else."""
    expected = local(feed)(step)
    assert expected["tokens_BT"].shape == (ROWS, T) and (expected["mlm_weights_BK"].sum(axis=1) > 0).all()
    parts = [local(feed, host, hosts)(step) for host in range(hosts)]
    whole = {name: np.concatenate([part[name] for part in parts]) for name in expected}
    assert len(whole["tokens_BT"]) % hosts == 0 and len(whole["tokens_BT"]) - ROWS < hosts
    assert_equal({name: values[:ROWS] for name, values in whole.items()}, expected)
    assert not whole["examples_BT"][ROWS:].any() and not whole["mlm_weights_BK"][ROWS:].any()


@pytest.fixture(scope="module")
def packed(store) -> Feed:
    return make_feed(store, row_examples=8)


def test_workers_give_the_same_batches(packed):
    make = local(packed, 1, 2)
    for step, batch in zip(range(998, 1003), iterate(make, 998, 1003, workers=2, prefetch=2), strict=True):
        assert_equal(batch, make(step))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_user_error_keeps_its_type(packed, workers):
    make = dataclasses.replace(local(packed), at=fails_at_two)
    batches = iterate(make, 0, 5, workers, prefetch=1)
    assert_equal(next(batches), make(0))
    assert_equal(next(batches), make(1))
    with pytest.raises(UserError) as error:
        next(batches)
    assert str(error.value) == "step 2 has no task; name one"
    abandoned = iterate(local(packed), 0, 10**6, workers, prefetch=2)
    next(abandoned)
    assert len(multiprocessing.active_children()) == workers
    abandoned.close()
    assert not multiprocessing.active_children()


def test_stop_signals_do_not_reach_the_workers(packed, monkeypatch):
    """They go to a whole process group: from a worker's first instruction on, and between its batches."""
    start = multiprocessing.context.SpawnProcess.start

    def start_and_signal(process):
        start(process)
        send(process.pid)

    def send(pid):
        for signum in terminal.STOP_SIGNALS:
            os.kill(pid, signum)

    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", start_and_signal)
    make = local(packed)
    for step, batch in enumerate(iterate(make, 0, 6, workers=2, prefetch=1)):
        assert_equal(batch, make(step))
        for worker in multiprocessing.active_children():
            send(worker.pid)
    assert step == 5


@pytest.mark.slow
def test_workers_end_with_a_process_that_is_killed(tmp_path):
    parent = subprocess.Popen([sys.executable, "-m", "tests.data.killed_parent"], stdout=subprocess.PIPE, text=True)
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in workers))


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended may still have an entry."""
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_batches_of_any_ordinals(feed):
    counts = feed.plans[0].counts
    epochs = [
        feed.batch(np.arange(epoch * counts.rows, (epoch + 1) * counts.rows))["example_ids_BN"] for epoch in (0, 1)
    ]
    for ids_BN in epochs:
        np.testing.assert_array_equal(np.sort(ids_BN[ids_BN >= 0]), np.arange(counts.examples))
    assert (epochs[0] != epochs[1]).any() and (epochs[0] != feed.plans[0].rows_RN).any()
    total = feed.plans[0].counts.rows
    across = feed.batch(np.arange(total - 3, total + 3))
    apart = [feed.batch(np.arange(total - 3, total)), feed.batch(np.arange(total, total + 3))]
    assert_equal(across, {name: np.concatenate([part[name] for part in apart]) for name in across})
    batch = feed.batch(np.array([-1, 5, -1]))
    alone = feed.batch(np.array([5]))
    assert_equal({name: array[1:2] for name, array in batch.items()}, alone)
    np.testing.assert_array_equal(batch["examples_BT"][[0, 2]], 0)
    np.testing.assert_array_equal(batch["example_ids_BN"][[0, 2]], -1)
    np.testing.assert_array_equal(batch["mlm_weights_BK"][[0, 2]], 0)
    assert (feed.batch(np.array([-1, -1]))["tokens_BT"] == feed.vocabulary.pad_id).all()
    assert len(pickle.dumps(feed)) < 40_000, "also after use"


def test_the_masking_of_an_example_changes_only_with_the_epoch(planned):
    total = planned.plans[0].counts.rows
    first, again, later = (planned.batch(np.arange(start, start + 4)) for start in (0, 0, total))
    assert_equal(again, first)
    np.testing.assert_array_equal(later["example_ids_BN"], first["example_ids_BN"])
    assert (later["tokens_BT"] != first["tokens_BT"]).any()


def test_weighted_sources_take_turns_and_their_examples_differ(store):
    """Two plans of the same text are two sources: no two examples have the same id, which decides the masking."""
    one, two = (make_feed(store, number=number).sources[0] for number in (0, 1))
    feed = Feed((one, two), Turns((0.75, 0.25)), features, Vocabulary.of(store.tokenizer), T)
    ids_BN = feed.batch(np.arange(400))["example_ids_BN"]
    ids, first = ids_BN[ids_BN >= 0], one.plans[0].counts.examples
    rows = (ids_BN[:, 0] >= first).sum()
    assert rows == 100
    assert len(np.unique(ids[ids >= first])) == (ids >= first).sum() > 100
    alone = dataclasses.replace(feed, sources=(one,), turns=Turns((1.0,))).batch(np.arange(300))
    np.testing.assert_array_equal(ids_BN[ids_BN[:, 0] < first][:, : one.plans[0].counts.slots], alone["example_ids_BN"])
