"""The benchmark of training steps: every arm of bertjax computes the same step."""

import dataclasses

import jax
import numpy as np
import pytest

from benchmarks import train_step
from benchmarks.arms import ours, products, without
from benchmarks.arms.setting import Setting
from bertjax import config_file
from bertjax.errors import RunFailed, UserError
from bertjax.models.presets import PRESETS
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.training import stage_flops
from bertjax.training.program import Program
from bertjax.training.shapes import batch_shapes

SMALL = Setting(
    layers=1, width=16, heads=2, feedforward=32, max_positions=16, vocab_size=100, batch=4, seq_len=16, predicted=4
)


def test_setting_is_preset_tiny():
    preset = dataclasses.replace(PRESETS["tiny"], vocab_size=8000)
    assert ours.encoder(Setting(), unroll=preset.execution.unroll) == preset


def test_the_share_is_that_of_the_step_of_the_front_door():
    config, setting = config_file.load("configs/tiny.py"), train_step.FRONT_DOOR
    shapes = batch_shapes(config.task_at(0, "bert"), setting.vocab_size, setting.seq_len, setting.batch)
    assert {name: leaf.shape for name, leaf in shapes.items()} == {
        name: array.shape for name, array in ours.batch(setting).items()
    }
    encoder = config.encoder(setting.vocab_size, "cpu")
    assert ours.encoder(setting, encoder.execution.unroll) == dataclasses.replace(encoder, init_stddev=0.02)
    assert products.flops_of(setting) == stage_flops.per_step(Program(config, setting.vocab_size), 0)


def test_labels_are_at_the_predicted_positions_only():
    inputs, labels_BT = SMALL.inputs(), SMALL.labels_BT(absent=-100)
    np.testing.assert_array_equal(np.take_along_axis(labels_BT, inputs["predicted_BK"], 1), inputs["labels_BK"])
    assert np.sum(labels_BT >= 0) == SMALL.batch * SMALL.predicted


@pytest.mark.slow
def test_our_arm_trains_and_reports_a_rate():
    worker = train_step.Worker("bertjax", train_step.PEERS["bertjax"], train_step.sys.executable, SMALL)
    assert worker.answer()["loss"] == pytest.approx(np.log(100) + np.log(2), abs=0.3)
    rates = train_step.measure([worker], SMALL, steps=1, rounds=2)
    worker.close()
    assert len(rates["bertjax"]) == 2 and min(rates["bertjax"]) > 0


def test_an_arm_that_fails_ends_the_benchmark():
    worker = train_step.Worker("odd", train_step.Arm("ours", ("--without=nothing",)), train_step.sys.executable, SMALL)
    with pytest.raises(RunFailed, match="arm odd ended with code 2"):
        worker.answer()


@pytest.mark.slow
def test_without_the_tricks_loss_and_gradient_stay_the_same(monkeypatch):
    setting = dataclasses.replace(SMALL, dropout=0.0, attention_dropout=0.0)

    def loss_and_gradient():
        objective, batch = BERT(), ours.batch(setting)
        module = objective.model(ours.encoder(setting, unroll=True))
        params = jax.jit(lambda key: objective.init(module, key, batch))(jax.random.key(0))

        def loss(params):
            return sum(objective.terms(module, params, None, batch, jax.random.key(1), True)[0].values())

        return jax.jit(jax.value_and_grad(loss))(params)

    with_tricks = loss_and_gradient()
    for trick in without.TRICKS:
        assert without.uses(trick)
        without.remove(trick, monkeypatch.setattr)
        assert not without.uses(trick)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), with_tricks, loss_and_gradient())


def test_ratios_are_taken_within_a_round():
    results = train_step.compare({"bertjax": [100.0, 10.0, 60.0], "slow": [50.0, 5.0, 20.0]})
    assert results["slow"]["ratio"] == {"median": 2.0, "low": 2.0, "high": 3.0}
    assert results["slow"]["tokens_per_second"]["best"] == 50.0


def test_an_unknown_arm_is_named():
    with pytest.raises(UserError, match="'tensorflow'"):
        train_step.main(["--arms=tensorflow"])


def test_the_ladder_removes_every_trick():
    arms = train_step.LADDER.values()
    tricks = {flag.removeprefix("--without=") for arm in arms for flag in arm.flags if "without" in flag}
    assert tricks == set(without.TRICKS)
