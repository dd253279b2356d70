"""Find out by tracing whether an attention kernel supports an encoder.

There is no list of supported settings. A kernel rejects unsupported inputs (`kernels.check_inputs`), so the answer is
also right for a setting that was added after the kernel.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.attention import SelfAttention
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.encoder import Encoder
from bertjax.models.kernels import PLAIN, CannotCompute, check_inputs


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
