"""The progress bar of a run."""

import io

import pytest
from tqdm import tqdm

from bertjax.training.hooks.progress import restart_clock


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
