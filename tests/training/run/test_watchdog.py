"""The watchdog: hanging steps are logged."""

import logging
import time

from bertjax.training.run.watchdog import Watchdog


def beat(watchdog: Watchdog, times: int) -> None:
    for _ in range(times):
        watchdog.beat()
        time.sleep(0.005)


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_step_that_hangs_is_logged_once(caplog):
    with Watchdog(least=0.3) as watchdog:
        beat(watchdog, 10)
        time.sleep(1.0)
        watchdog.beat()
        time.sleep(0.01)
    [warning] = warnings(caplog)
    assert warning.startswith("a step has taken ") and "the median is 0.0" in warning


def test_time_outside_of_steps_is_not_counted(caplog):
    with Watchdog(least=0.2) as watchdog:
        beat(watchdog, 10)
        with watchdog.paused():
            time.sleep(0.6)
        beat(watchdog, 3)
    assert warnings(caplog) == []


def test_the_first_steps_may_take_any_time(caplog):
    with Watchdog(least=0.1) as watchdog:
        beat(watchdog, 3)
        time.sleep(0.4)
    assert warnings(caplog) == []
