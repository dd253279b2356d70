"""The choice of a run's attention implementation, by backend, mesh and encoder."""

import re

from bertjax.errors import UserError
from bertjax.models.config import EncoderConfig
from bertjax.models.kernels import CUDNN, FUSED, PLAIN, SPLASH, TRITON
from bertjax.models.tracing import reason_against

# The kernels need a memory hierarchy that TPU v2 and v3 lack.
_WITHOUT_KERNELS = re.compile(r"TPU v[23]\b")


def choose_attention(requested: str, encoder: EncoderConfig, backend: str, device_kind: str, tensor: int = 1) -> str:
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

    What a kernel computes is found by tracing the encoder with it, see `bertjax.models.tracing`.

    Args:
      requested: `auto` or the name of an implementation.
      encoder: the encoder; of its `execution` only the dtype matters.
      backend: `cpu`, `gpu` or `tpu`.
      device_kind: kind of its devices, as JAX names it.
      tensor: size of the mesh axis `tensor`.

    Raises:
      UserError: the requested implementation cannot compute this encoder here.
    """

    def reason_against_device(name: str) -> str:
        if name in (FUSED, SPLASH) and (backend != "tpu" or _WITHOUT_KERNELS.match(device_kind)):
            return f"runs on TPU v4 and later, and this is {device_kind}"
        if name == TRITON and backend != "gpu":
            return f"runs on GPU, not on {backend}"
        if name == CUDNN and (backend, encoder.execution.dtype) != ("gpu", "bfloat16"):
            return f"runs on GPU in bfloat16, not on {backend} in {encoder.execution.dtype}"
        if name in (FUSED, TRITON, SPLASH) and tensor > 1:
            return f"cannot be sharded over runtime.mesh.tensor={tensor}"
        if name != PLAIN and not encoder.has_attention:
            return f"computes attention, and model.layer_type={encoder.layer_type} has none"
        return ""

    def reason(name: str) -> str:
        return reason_against_device(name) or reason_against(encoder, name)

    if requested == "auto":
        return next(name for name in (FUSED, SPLASH, PLAIN) if not reason(name))
    if found := reason(requested):
        raise UserError(f"runtime.attention={requested} {found}; use runtime.attention=auto")
    return requested
