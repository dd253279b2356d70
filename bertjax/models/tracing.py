"""Which encoders an implementation of attention computes, found by tracing them.

No list of settings says so: a kernel refuses what attention passes to it (`kernels.check_inputs`). This is also so for
a setting that is newer than the kernel.
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
    """Return why an implementation of attention cannot compute an encoder in training; empty if it can."""
    if implementation == PLAIN:
        return ""
    # Neither the vocabulary nor the execution has an effect, and tracing takes 0.2 s.
    return _reason_against(dataclasses.replace(config, vocab_size=1, execution=Execution()), implementation)


def with_possible_attention(config: EncoderConfig) -> EncoderConfig:
    """Return an encoder that runs beside another one, with plain attention if that one's kernel cannot compute it."""
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
        with nn.intercept_methods(check):
            jax.eval_shape(lambda key: Encoder(config).init(key, zeros_BT, key=key), jax.random.key(0))
    except CannotCompute as error:
        return error.reason
    return ""
