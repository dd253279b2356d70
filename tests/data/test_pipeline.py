"""Batches: slices of hosts, worker processes, epochs, and sources."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Vocabulary
from bertjax.data.formats.pairs import SegmentPairs
from bertjax.data.masking import TokenMasking, gather_masked, mask
from bertjax.data.order import Epochs, Turns
from bertjax.data.pipeline import Feed, LocalBatches, iterate
from bertjax.data.plan import Spec, open_or_make
from bertjax.runtime import command_line
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


def make_feed(store, shuffle=True, examples=PAIRS, **choices) -> Feed:
    plan = open_or_make(store, Spec("train", examples, seq_len=T, seed=0, **choices))
    epochs = Epochs((plan,), "rows", seed=0, shuffle=shuffle)
    return Feed((epochs,), Turns((1.0,)), features, Vocabulary.of(store.tokenizer), T)


@pytest.fixture(scope="module", params=[1, 8], ids=["alone", "packed"])
def feed(request, store) -> Feed:
    return make_feed(store, row_examples=request.param)


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


@pytest.mark.slow
def test_workers_give_the_same_batches(packed):
    make = local(packed, 1, 2)
    for step, batch in zip(range(998, 1003), iterate(make, 998, 1003, workers=2, prefetch=2), strict=True):
        assert_equal(batch, make(step))
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_stop_signals_do_not_reach_the_workers(packed, monkeypatch):
    """They go to a whole process group: from a worker's first instruction on, and between its batches."""
    start = multiprocessing.context.SpawnProcess.start

    def start_and_signal(process):
        start(process)
        send(process.pid)

    def send(pid):
        for signum in command_line.STOP_SIGNALS:
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
