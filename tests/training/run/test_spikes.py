"""Detection of loss spikes."""

import numpy as np

from bertjax.training.run.spikes import SpikeDetector


def test_a_spike_is_found_and_hardly_moves_the_mean():
    draw, detector = np.random.default_rng(0), SpikeDetector(deviations=6.0, horizon=50)
    losses = 5.0 + 0.1 * draw.normal(size=400)
    losses[[200, 201, 300]] = 7.0, 9.0, np.nan
    spikes_at = {step: detector.find(step, {"loss": loss}) for step, loss in enumerate(losses)}
    assert [step for step, spikes in spikes_at.items() if spikes] == [200, 201, 300]
    loss, above = spikes_at[200]["loss"]
    assert loss == 7.0 and 12.0 < above < 30.0


def test_a_falling_loss_has_no_spikes():
    draw, detector = np.random.default_rng(1), SpikeDetector()
    losses = 2.0 + 8.0 * np.exp(-np.arange(5000) / 400) + 0.1 * draw.normal(size=5000)
    assert not any(detector.find(step, {"loss": loss}) for step, loss in enumerate(losses))


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
