"""Choose a run's attention implementation by backend, mesh and encoder."""

import re

from bertjax.models.config import EncoderConfig
from bertjax.models.kernels import CUDNN, FUSED, PLAIN, SPLASH
from bertjax.models.taps import ATTENTION
from bertjax.models.tracing import reason_against
from bertjax.runtime.errors import UserError

# The kernels need a memory hierarchy that TPU v2 and v3 lack.
_WITHOUT_KERNELS = re.compile(r"TPU v[23]\b")


def choose_attention(requested: str, encoder: EncoderConfig, backend: str, device_kind: str, tensor: int = 1) -> str:
    """Return the attention implementation for an encoder. Rows of unsupported lengths use `plain`.

    See `kernels.implementation_at` for these lengths.

    `auto` takes the first one that supports the encoder:

    | name   | backend         | attention dropout | local layers | heads                                     |
    |--------|-----------------|-------------------|--------------|-------------------------------------------|
    | fused  | TPU v4 or later | any               | any          | 32, 64 or 128 wide, together 128 x n wide |
    | splash | TPU v4 or later | 0                 | none         | any                                       |
    | plain  | any             | any               | any          | any                                       |

    On GPU, `cudnn` runs in bfloat16 without dropout and needs the full mask to separate packed examples. `auto` does
    not choose it, because it has not been measured. fused and splash cannot run with an axis `tensor`: the compiler
    shards that axis, and it cannot shard a kernel. They also need `model.direction=bidirectional`. Only `plain` has
    relative positions (XLNet, DeBERTa), biases of distances (MPNet) and fixed heads.

    Kernel support is tested by tracing the encoder, see `bertjax.models.tracing`.

    Args:
      requested: `auto` or the name of an implementation.
      encoder: the encoder; from its `execution` only the dtype is used.
      backend: `cpu`, `gpu` or `tpu`.
      device_kind: JAX's name for the kind of device.
      tensor: size of the mesh axis `tensor`.

    Raises:
      UserError: the requested implementation cannot compute this encoder here.
    """

    dtype, has_kernels = encoder.execution.dtype, backend == "tpu" and not _WITHOUT_KERNELS.match(device_kind)

    def reason(name: str) -> str:
        is_kernel, is_elsewhere = name in (FUSED, SPLASH), name == CUDNN and (backend, dtype) != ("gpu", "bfloat16")
        lacks_attention = name != PLAIN and ATTENTION not in encoder.block.captures
        reasons = {
            f"runs on TPU v4 and later, and this is {device_kind}": is_kernel and not has_kernels,
            f"runs on GPU in bfloat16, not on {backend} in {dtype}": is_elsewhere,
            f"cannot be sharded over runtime.mesh.tensor={tensor}": is_kernel and tensor > 1,
            f"computes attention, and model.block.kind={encoder.block.kind} has none": lacks_attention,
        }
        return next((text for text, applies in reasons.items() if applies), "") or reason_against(encoder, name)

    if requested == "auto":
        # `plain` computes every encoder, so there is always one.
        return next(name for name in (FUSED, SPLASH, PLAIN) if not reason(name))
    if found := reason(requested):
        raise UserError(f"runtime.attention={requested} {found}; use runtime.attention=auto")
    return requested
