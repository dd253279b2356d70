"""Choose a run's attention implementation by backend, mesh and encoder.

There is no list of supported settings. A kernel rejects unsupported inputs (`kernels.check_inputs`), and tracing the
encoder finds out whether it does. So the answer is also right for a setting that was added after the kernel.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.attention import SelfAttention
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.encoder import Encoder
from bertjax.models.kernels import CUDNN, FUSED, PLAIN, SPLASH, CannotCompute, check_inputs
from bertjax.models.taps import ATTENTION
from bertjax.runtime.errors import UserError


def reason_against(config: EncoderConfig, implementation: str) -> str:
    """Return why an attention implementation cannot train this encoder; empty if it can."""
    if implementation == PLAIN:
        return ""
    # Vocabulary size and execution do not affect the answer; fixing them lets more configs share a cached trace (0.2
    # s).
    return _reason_against(dataclasses.replace(config, vocab_size=1, execution=Execution()), implementation)


def with_possible_attention(config: EncoderConfig) -> EncoderConfig:
    """Return the config with plain attention if the requested kernel does not support it, otherwise unchanged.

    This is for an encoder that runs beside another one, such as a generator or a teacher.
    """
    if not reason_against(config, config.execution.attention):
        return config
    return dataclasses.replace(config, execution=dataclasses.replace(config.execution, attention=PLAIN))


@functools.lru_cache(maxsize=64)
def _reason_against(config: EncoderConfig, implementation: str) -> str:
    def check(next_function, arguments, keywords, context):
        if isinstance(context.module, SelfAttention) and context.method_name == "attend":
            check_inputs(implementation, *arguments)
        return next_function(*arguments, **keywords)

    zeros_BT = jnp.zeros((1, 1), jnp.int32)
    try:
        # eval_shape traces the forward pass with abstract values: no arrays are allocated and nothing is compiled.
        with nn.intercept_methods(check):
            jax.eval_shape(lambda key: Encoder(config).init(key, zeros_BT, key=key), jax.random.key(0))
    except CannotCompute as error:
        return error.reason
    return ""


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

    Kernel support is tested by tracing the encoder, see `bertjax.models.kernel_choice`.

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
