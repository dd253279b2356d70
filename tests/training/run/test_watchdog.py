import logging
import time

import numpy as np

from bertjax.training.run.watchdog import Spikes, Watchdog


def beat(watchdog: Watchdog, times: int) -> None:
    for _ in range(times):
        watchdog.beat()
        time.sleep(0.005)


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_step_that_hangs_is_told_once_with_the_stacks_of_all_threads(caplog):
    with Watchdog(least=0.3) as watchdog:
        beat(watchdog, 10)
        time.sleep(1.0)
        watchdog.beat()
        time.sleep(0.01)
    [told] = warnings(caplog)
    assert told.startswith("a step has taken ") and "the median is 0.0" in told


def test_what_is_no_step_may_take_its_time(caplog):
    with Watchdog(least=0.2) as watchdog:
        beat(watchdog, 10)
        with watchdog.paused():
            time.sleep(0.6)
        beat(watchdog, 3)
    assert warnings(caplog) == []


def test_the_first_steps_are_not_judged(caplog):
    with Watchdog(least=0.1) as watchdog:
        beat(watchdog, 3)
        time.sleep(0.4)
    assert warnings(caplog) == []


def test_a_loss_that_jumps_is_found_and_hardly_moves_the_mean():
    draw, spikes = np.random.default_rng(0), Spikes(deviations=6.0, horizon=50)
    losses = 5.0 + 0.1 * draw.normal(size=400)
    losses[[200, 201, 300]] = 7.0, 9.0, np.nan
    found = {step: spikes.judge({"loss": loss}) for step, loss in enumerate(losses)}
    assert [step for step, jumps in found.items() if jumps] == [200, 201, 300]
    loss, above = found[200]["loss"]
    assert loss == 7.0 and 12.0 < above < 30.0


def test_a_loss_that_falls_as_losses_do_never_jumps():
    draw, spikes = np.random.default_rng(1), Spikes()
    losses = 2.0 + 8.0 * np.exp(-np.arange(5000) / 400) + 0.1 * draw.normal(size=5000)
    assert not any(spikes.judge({"loss": loss}) for loss in losses)


def test_losses_that_are_not_finite_at_the_begin_leave_no_trace():
    draw, spikes = np.random.default_rng(2), Spikes(horizon=50)
    losses = 5.0 + 0.1 * draw.normal(size=200)
    losses[[0, 10]] = np.inf, np.nan
    assert not any(spikes.judge({"loss": loss}) for loss in losses)


def test_a_loss_that_stays_on_a_new_level_is_soon_no_jump():
    draw, spikes = np.random.default_rng(3), Spikes()
    losses = 2.0 + 0.01 * draw.normal(size=1000)
    losses[500:] += 1.0
    found = [step for step, loss in enumerate(losses) if spikes.judge({"loss": loss})]
    assert found and found[0] == 500 and found[-1] < 530
