"""The benchmark of training steps: every arm of bertjax computes the same step."""

import dataclasses

import numpy as np
import pytest

from benchmarks import train_step
from benchmarks.arms import ours, without
from benchmarks.arms.setting import Setting
from bertjax.models import kernels

SMALL = Setting(
    layers=1, width=16, heads=2, feedforward=32, max_positions=16, vocab_size=100, batch=4, seq_len=16, predicted=4
)


@pytest.mark.slow
@pytest.mark.parametrize("trick", without.TRICKS)
def test_a_trick_changes_the_speed_and_not_the_step(trick, monkeypatch):
    """The second loss is that after an update. Only dropout draws other decisions."""
    is_drawn, tokens = trick == "hashed-dropout", kernels.SHORTEST_IN_PARTS if trick == "long-rows" else SMALL.seq_len
    rate = 0.1 if is_drawn else 0.0
    setting = dataclasses.replace(SMALL, max_positions=tokens, seq_len=tokens, dropout=rate, attention_dropout=rate)
    losses = [[step(), step()] for step in [ours.build(setting)]]
    without.remove(trick, monkeypatch.setattr)
    losses += [[step(), step()] for step in [ours.build(setting)]]
    assert losses[0] == pytest.approx(losses[1], abs=0.1 if is_drawn else 1e-5)
    assert losses[0][0] != losses[0][1] and (losses[0] != losses[1] or not is_drawn)


@pytest.mark.slow
def test_our_arm_trains_and_reports_a_rate():
    worker = train_step.Worker("bertjax", train_step.PEERS["bertjax"], train_step.sys.executable, SMALL)
    assert worker.answer()["loss"] == pytest.approx(np.log(100) + np.log(2), abs=0.3)
    rates = train_step.measure([worker], SMALL, steps=1, rounds=2)
    worker.close()
    assert len(rates["bertjax"]) == 2 and min(rates["bertjax"]) > 0
