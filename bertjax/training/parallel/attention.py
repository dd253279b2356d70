"""The choice of a run's attention implementation, by backend, dropout and mesh."""

import re

from bertjax.errors import UserError
from bertjax.models.config import BIDIRECTIONAL
from bertjax.models.kernels import CUDNN, PLAIN, SPLASH

# Splash needs a memory hierarchy that TPU v2 and v3 lack.
_WITHOUT_SPLASH = re.compile(r"TPU v[23]\b")


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
) -> str:
    """Return the implementation of an encoder. Rows that it cannot compute use `plain`: `kernels.implementation_at`.

    | requested | backend         | attention dropout | axis tensor | local layers  | result    |
    |-----------|-----------------|-------------------|-------------|---------------|-----------|
    | auto      | TPU v4 or later | 0                 | 1           | none          | splash    |
    | auto      | any other       | any               | any         | any           | plain     |
    | a name    | as below        | 0                 | 1 (splash)  | none (splash) | that name |

    Splash also needs `model.direction=bidirectional`.

    Splash runs on TPU v4 and later. It does not run with an axis `tensor`, which the compiler shards: the compiler
    cannot shard a kernel. cuDNN runs on GPU in bfloat16. `auto` never chooses it: it needs the full mask to separate
    packed examples, and whether it is faster has not been measured. Only `plain` has relative positions and
    fixed heads.

    Raises:
      UserError: the requested implementation cannot compute this encoder here.
    """
    has_splash = backend == "tpu" and not _WITHOUT_SPLASH.match(device_kind)
    if requested == "auto":
        can_splash = dropout == 0.0 and tensor == 1 and not window
        can_splash &= positions != "relative" and direction == BIDIRECTIONAL and not fixed_heads
        return SPLASH if has_splash and can_splash else PLAIN
    reasons = []
    if requested == SPLASH and not has_splash:
        reasons.append(f"runs on TPU v4 and later, and this is {device_kind}")
    if requested == CUDNN and (backend, dtype) != ("gpu", "bfloat16"):
        reasons.append(f"runs on GPU in bfloat16, not on {backend} in {dtype}")
    if requested != PLAIN and dropout:
        reasons.append(f"has no dropout, and model.attention_dropout={dropout}")
    if requested == SPLASH and tensor > 1:
        reasons.append(f"cannot be sharded over runtime.mesh.tensor={tensor}")
    if requested == SPLASH and window:
        reasons.append(f"has one mask for all layers, and model.window={window} is for some of them")
    if requested == SPLASH and direction != BIDIRECTIONAL:
        reasons.append(f"shows every token the whole example, and model.direction={direction} does not")
    if requested != PLAIN and positions == "relative":
        reasons.append("has no terms of distances, which model.positions=relative adds")
    if requested != PLAIN and fixed_heads:
        reasons.append(f"computes its own maps, and model.fixed_heads={list(fixed_heads)} are given ones")
    if reasons:
        raise UserError(f"runtime.attention={requested} {' and '.join(reasons)}; use runtime.attention=auto")
    return requested
