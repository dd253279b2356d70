"""The choice of a run's attention implementation, by backend, dropout and mesh."""

import re

from bertjax.errors import UserError
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.models.kernels import CUDNN, FUSED, PLAIN, SPLASH, TRITON, WITH_DROPOUT, reason_against_heads

# The kernels need a memory hierarchy that TPU v2 and v3 lack.
_WITHOUT_KERNELS = re.compile(r"TPU v[23]\b")


def choose_attention(
    requested: str,
    backend: str,
    device_kind: str,
    dropout: float,
    dtype: str,
    tensor: int,
    window: int = 0,
    positions: str = "learned",
    direction: str = BIDIRECTIONAL,
    fixed_heads: tuple[str, ...] = (),
    width: int = 768,
    heads: int = 12,
    has_attention: bool = True,
) -> str:
    """Return the implementation of an encoder. Rows that it cannot compute use `plain`: `kernels.implementation_at`.

    `auto` takes the first that can compute the encoder:

    | name   | backend         | attention dropout | local layers | heads                                     |
    |--------|-----------------|-------------------|--------------|-------------------------------------------|
    | fused  | TPU v4 or later | any               | any          | 32, 64 or 128 wide, together 128 x n wide |
    | splash | TPU v4 or later | 0                 | none         | any                                       |
    | plain  | any             | any               | any          | any                                       |

    On GPU there are `triton`, with dropout and local layers, for heads 32, 64 or 128 wide, and `cudnn`, in bfloat16 and
    without dropout, which needs the full mask to separate packed examples. `auto` chooses neither, since nobody has
    measured them. fused, splash and triton do not run with an axis `tensor`, which the compiler shards: the compiler
    cannot shard a kernel. They also need `model.direction=bidirectional`. Only `plain` has relative positions and fixed
    heads.

    Raises:
      UserError: the requested implementation cannot compute this encoder here.
    """

    def reasons_against(name: str) -> list[str]:
        reasons, is_pallas = [], name in (FUSED, TRITON, SPLASH)
        if name in (FUSED, SPLASH) and (backend != "tpu" or _WITHOUT_KERNELS.match(device_kind)):
            reasons.append(f"runs on TPU v4 and later, and this is {device_kind}")
        if name == TRITON and backend != "gpu":
            reasons.append(f"runs on GPU, not on {backend}")
        if name == CUDNN and (backend, dtype) != ("gpu", "bfloat16"):
            reasons.append(f"runs on GPU in bfloat16, not on {backend} in {dtype}")
        if name in (SPLASH, CUDNN) and dropout:
            reasons.append(f"has no dropout, and model.attention_dropout={dropout}")
        if is_pallas and tensor > 1:
            reasons.append(f"cannot be sharded over runtime.mesh.tensor={tensor}")
        if name == SPLASH and window:
            reasons.append(f"has one mask for all layers, and model.window={window} is for some of them")
        if is_pallas and direction != BIDIRECTIONAL:
            reasons.append(f"shows every token the whole example, and model.direction={direction} does not")
        if name != PLAIN and positions == "relative":
            reasons.append("has no terms of distances, which model.positions=relative adds")
        if name != PLAIN and fixed_heads:
            reasons.append(
                f"computes all attention maps, and those of model.fixed_heads={list(fixed_heads)} are constant"
            )
        if name != PLAIN and not has_attention:
            reasons.append("computes attention, and model.layer_type=lstm has none")
        if name in WITH_DROPOUT and (reason := reason_against_heads(name, width, heads)):
            reasons.append(reason)
        return reasons

    if requested == "auto":
        return next(name for name in (FUSED, SPLASH, PLAIN) if not reasons_against(name))
    if reasons := reasons_against(requested):
        raise UserError(f"runtime.attention={requested} {' and '.join(reasons)}; use runtime.attention=auto")
    return requested
