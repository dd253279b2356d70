"""The progress bar of a run."""

import io
import types

import pytest
from tqdm import tqdm

from bertjax.training.hooks.progress import ProgressBar, restart_clock, show_metrics


def test_the_rate_is_seen_on_a_narrow_terminal_however_many_losses_there_are():
    bar = tqdm(total=100, unit="step", ncols=80, file=io.StringIO(), mininterval=0, initial=10)
    bar.update(40)
    losses = {f"{name}_loss": 1.0 for name in ("generator", "discriminator", "total")}
    show_metrics(bar, losses | {"tokens": 4096.0, "generator_accuracy": 0.5})
    assert len(str(bar)) <= 80 and "tokens/s" in str(bar) and "generator_accuracy" not in str(bar)
    bar.close()


def test_the_time_left_does_not_count_the_compilation():
    """Of a bar by a clock of the test: 100 s for the first step, then one step a second."""
    now = 0.0
    bar = tqdm(total=100, initial=10, smoothing=0.1, file=io.StringIO(), mininterval=0.5)
    bar._time = lambda: now
    bar.start_t = bar.last_print_t = now
    now = 100.0
    restart_clock(bar, 11)
    for step in range(12, 42):
        now += 1.0
        bar.update(step - bar.n)
    assert bar.format_dict["elapsed"] == 30.0
    assert bar.format_dict["rate"] == pytest.approx(1.0) and "00:30<00:59, " in str(bar)
    bar.close()


def test_all_steps_of_the_first_dispatch_are_left_out():
    """They arrive in the same instant, so counting one of them would give a rate without end."""
    restored = types.SimpleNamespace(step=10)
    timetable, bar = types.SimpleNamespace(steps=100), ProgressBar()
    run = types.SimpleNamespace(restored=restored, timetable=timetable, step=10)
    bar.on_start(run)
    bar.on_dispatch(run, 10, 14)
    bar.on_dispatch(run, 14, 18)  # before the steps of the first one arrive
    for step in range(11, 19):
        bar.on_step(run, step, {"tokens": 1.0})
        assert bar._bar.n == step and bar._bar.initial == min(step, 14)
    bar.on_close(run, None)
