"""Detection of loss spikes."""

import json

import numpy as np
import pytest

from bertjax.training.hooks.spikes import SpikeDetector


def test_a_spike_is_found_and_hardly_moves_the_mean():
    draw, detector = np.random.default_rng(0), SpikeDetector(deviations=6.0, horizon=50)
    losses = 5.0 + 0.1 * draw.normal(size=400)
    losses[[200, 201, 300]] = 7.0, 9.0, np.nan
    spikes_at = {step: detector.find(step, {"loss": loss}) for step, loss in enumerate(losses)}
    assert [step for step, spikes in spikes_at.items() if spikes] == [200, 201, 300]
    loss, above = spikes_at[200]["loss"]
    assert loss == 7.0 and 12.0 < above < 30.0


def test_losses_that_are_not_finite_do_not_enter_the_mean():
    draw, detector = np.random.default_rng(2), SpikeDetector(horizon=50)
    losses = 5.0 + 0.1 * draw.normal(size=200)
    losses[[0, 10]] = np.inf, np.nan
    assert not any(detector.find(step, {"loss": loss}) for step, loss in enumerate(losses))


def test_a_lasting_change_of_the_loss_soon_counts_as_normal():
    draw, detector = np.random.default_rng(3), SpikeDetector()
    losses = 2.0 + 0.01 * draw.normal(size=1000)
    losses[500:] += 1.0
    spikes = [step for step, loss in enumerate(losses) if detector.find(step, {"loss": loss})]
    assert spikes and spikes[0] == 500 and spikes[-1] < 530


def test_a_restart_knows_what_the_detector_knew():
    draw = np.random.default_rng(5)
    losses = 2.0 + 0.05 * draw.normal(size=600)
    losses[[350, 450]] = 4.0
    losses[500:] += 3.0
    whole, parts = SpikeDetector(), SpikeDetector()
    for step, loss in enumerate(losses):
        if step % 70 == 0:  # more often than the horizon, within which a new detector finds nothing
            parts = SpikeDetector(state=json.loads(json.dumps(parts.state)))
        assert parts.find(step, {"loss": loss}) == whole.find(step, {"loss": loss})
        assert parts.state == whole.state
    assert whole.high_since is not None


@pytest.mark.parametrize("level, is_high", [(7.0, True), (2.0, False)])
def test_a_loss_that_is_high_when_a_stage_ends_is_high_until_the_next_one_is_low(level, is_high):
    """The checkpoints from before the rise are kept as long."""
    draw, detector = np.random.default_rng(7), SpikeDetector()
    losses = 2.0 + 0.05 * draw.normal(size=900)
    losses[200:450] += 5.0
    losses[450:] += level - 2.0
    high = []
    for step, loss in enumerate(losses):
        detector = SpikeDetector(state=json.loads(json.dumps(detector.state)))
        detector.find(step, {"loss": loss}, stage=step // 400)
        high.append(detector.high_since)
    since = high[399]
    assert 200 <= since < 250 and set(high[400:500]) == {since}, "it is not known yet in the new stage"
    assert high[-1] == (since if is_high else None)
