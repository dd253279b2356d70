import numpy as np
import pytest

from bertjax.training.schedules import linear


@pytest.mark.parametrize(
    "warmup_steps, expected",
    [
        (4, [0.5, 1.0, 1.5, 2.0, 2.0, 5 / 3, 4 / 3, 1.0, 2 / 3, 1 / 3]),
        (0, [2.0, 1.8, 1.6, 1.4, 1.2, 1.0, 0.8, 0.6, 0.4, 0.2]),
        (1, [2.0, 2.0, 16 / 9, 14 / 9, 12 / 9, 10 / 9, 8 / 9, 6 / 9, 4 / 9, 2 / 9]),
        (10, [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0]),
    ],
)
def test_linear(warmup_steps, expected):
    found = [float(linear(np.int32(step), 2.0, warmup_steps, 10)) for step in range(10)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_warmup_longer_than_the_run_never_reaches_the_peak():
    assert max(float(linear(np.int32(step), 2.0, 100, 10)) for step in range(10)) == pytest.approx(0.2)
