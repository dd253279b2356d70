"""Calibration factors: published step time on a TPU over its floor. The forecasts themselves are not measured.

GPT-speedrun-TPU (github.com/honglu2875/GPT-speedrun-TPU, docs/KERNELS.md, "Measured TPU v4 snapshots") publishes step
times for GPT-2 small on four v4 chips: 93.196 ms with dense attention, 75.191 ms with its FlashAttention. bertjax
compiles the same step to floors of 76.8 ms and 31.7 ms. The measured program is not bertjax's, so the factors show how
efficient a step can be in practice, not how efficient bertjax is.

`python -m benchmarks.compile_calibration --out=FILE` recomputes the factors from the forecasts in
benchmarks/results/compile_calibration.jsonl.
"""

from bertjax.models.kernels import PLAIN

SOURCE = "GPT-speedrun-TPU's published v4-8 step"
# Published time / floor: 93.196 / 76.8 and 75.191 / 31.7, before the floors are rounded.
_DENSE, _KERNEL = 1.213, 2.374


def factor(attention: str) -> float:
    """Return published time / floor for the step with the same kind of attention, plain or a kernel.

    The factor for `plain` is smaller: its floor already counts the attention scores that pass through HBM.
    """
    return _DENSE if attention == PLAIN else _KERNEL
