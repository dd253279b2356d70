"""How many times its floor a step took that was measured on a TPU: a scale for forecasts, none of which was measured.

GPT-speedrun-TPU (github.com/honglu2875/GPT-speedrun-TPU, docs/KERNELS.md, "Measured TPU v4 snapshots") publishes the
time of a step of GPT-2 small on four v4 chips: 93.196 ms with dense attention, 75.191 ms with its FlashAttention.
bertjax compiles the same step to floors of 76.8 ms and 31.7 ms. The program that was measured is not bertjax's, so the
factors say how efficient a step can be in practice, not how efficient bertjax's is.

`python -m benchmarks.compile_calibration --out=FILE` repeats them; benchmarks/results/compile_calibration.jsonl has the
forecasts that they come from.
"""

from bertjax.models.kernels import PLAIN

SOURCE = "GPT-speedrun-TPU's published v4-8 step"
_DENSE, _KERNEL = 1.213, 2.374


def factor(attention: str) -> float:
    """Return the published time over the floor, of the step whose attention is of the same kind.

    A floor with `plain` attention has all scores pass through memory, which a measured step does too: the factor is
    smaller.
    """
    return _DENSE if attention == PLAIN else _KERNEL
