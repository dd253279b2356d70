"""Which attention path a run takes: by a table of backend, dropout and mesh."""

import re

from bertjax.errors import UserError
from bertjax.models.kernels import CUDNN, PLAIN, SPLASH

# Splash needs a memory hierarchy that TPU v2 and v3 lack.
_WITHOUT_SPLASH = re.compile(r"TPU v[23]\b")


def choose_attention(
    wanted: str,
    backend: str,
    device_kind: str,
    dropout: float,
    dtype: str,
    tensor: int,
    window: int = 0,
    positions: str = "learned",
) -> str:
    """The path of an encoder; rows that it cannot serve are left to `plain` by `bertjax.models.kernels.path_at`.

    | wanted | backend         | attention dropout | axis tensor | local layers  | path   |
    |--------|-----------------|-------------------|-------------|---------------|--------|
    | auto   | TPU v4 or later | 0                 | 1           | none          | splash |
    | auto   | any other       | any               | any         | any           | plain  |
    | a path | as below        | 0                 | 1 (splash)  | none (splash) | it     |

    Splash runs on TPU v4 and later. The axis tensor is left to the compiler, which takes no kernel apart. cuDNN runs on
    GPU in bfloat16 and is never chosen by `auto`: it needs the full mask to keep packed examples apart, and whether
    that pays has not been measured. Where positions are relative, there is none but the plain path.

    Raises:
      UserError: the path that is wanted cannot serve.
    """
    has_splash = backend == "tpu" and not _WITHOUT_SPLASH.match(device_kind)
    if wanted == "auto":
        can_splash = dropout == 0.0 and tensor == 1 and not window and positions != "relative"
        return SPLASH if has_splash and can_splash else PLAIN
    reasons = []
    if wanted == SPLASH and not has_splash:
        reasons.append(f"runs on TPU v4 and later, and this is {device_kind}")
    if wanted == CUDNN and (backend, dtype) != ("gpu", "bfloat16"):
        reasons.append(f"runs on GPU in bfloat16, not on {backend} in {dtype}")
    if wanted != PLAIN and dropout:
        reasons.append(f"has no dropout, and model.attention_dropout={dropout}")
    if wanted == SPLASH and tensor > 1:
        reasons.append(f"cannot be shared out over runtime.mesh.tensor={tensor}")
    if wanted == SPLASH and window:
        reasons.append(f"has one mask for all layers, and model.window={window} is for some of them")
    if wanted != PLAIN and positions == "relative":
        reasons.append("has no terms of distances, which model.positions=relative adds")
    if reasons:
        raise UserError(f"runtime.attention={wanted} {' and '.join(reasons)}; use runtime.attention=auto")
    return wanted
