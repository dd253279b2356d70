"""The work of kernels, counted in their traced programs."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.forecast import hlo
from bertjax.forecast.pallas import Work, calls, kernels, work_of_call
from bertjax.models.kernels import LONGEST_FUSED, attend_by_splash, attend_with_dropout
from bertjax.models.visibility import Visibility
from tests.forecast.programs import mesh


def fused_with_dropout(*arguments):
    return attend_with_dropout(*arguments, 0.1, jax.random.key(0))


@pytest.mark.parametrize("attend", [attend_by_splash, fused_with_dropout])
def test_attention(attend):
    """Forward two products of [T, D] and [D, T] or the like, backward five."""
    rows, seq_len, heads, width = 2, 256, 4, 64

    def loss(query, key, value, examples):
        return jnp.sum(attend(query, key, value, Visibility(examples)).astype(jnp.float32))

    sharding = NamedSharding(mesh("v5e:1x1"), PartitionSpec())
    heads_of = jax.ShapeDtypeStruct((rows, seq_len, heads, width), jnp.bfloat16, sharding=sharding)
    examples = jax.ShapeDtypeStruct((rows, seq_len), jnp.int32, sharding=sharding)
    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(heads_of, heads_of, heads_of, examples)
    module = hlo.parse(traced.lower().compile().as_text())
    traced_kernels = kernels(traced.jaxpr.jaxpr)
    counted = {call.name: work_of_call(call, traced_kernels) for call, _ in calls(module)}
    logits = rows * heads * seq_len * seq_len
    assert sorted(work.flops for work in counted.values()) == pytest.approx([4 * logits * width, 10 * logits * width])
    # The exponential, its maximum and sum, the mask and the scale are at least five operations for each logit.
    assert all(5 * logits < work.operations < 100 * logits for work in counted.values())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", LONGEST_FUSED)
def test_the_longest_rows_fit_into_the_memory_of_a_v4_chip(dtype):
    """Twice the length, or float32 at the length of bfloat16, does not: libtpu reports that VMEM is exhausted."""
    devices = mesh("v4:2x2x1")
    replicated = PartitionSpec()

    def gradients(query, key, value, examples):
        def loss(*states):
            return jnp.sum(fused_with_dropout(*states, Visibility(examples)).astype(jnp.float32))

        return jax.grad(loss, argnums=(0, 1, 2))(query, key, value)

    seq_len, sharding = LONGEST_FUSED[dtype], NamedSharding(devices, replicated)
    states = jax.ShapeDtypeStruct((1, seq_len, 4, 64), jnp.dtype(dtype), sharding=sharding)
    examples = jax.ShapeDtypeStruct((1, seq_len), jnp.int32, sharding=sharding)
    on_each = jax.shard_map(gradients, mesh=devices, in_specs=replicated, out_specs=replicated, check_vma=False)
    module = hlo.parse(jax.jit(on_each).trace(states, states, states, examples).lower().compile().as_text())
    assert len(list(calls(module))) == 2  # forward and backward


def test_operations_of_a_kernel():
    """For each of 4 blocks of 8 x 128 elements: a product and a sum, and three times a maximum; then a row sum."""

    def kernel(x_ref, y_ref, out_ref):
        z = x_ref[...] * 2.0 + y_ref[...]
        z, _ = jax.lax.scan(lambda z, _: (jnp.maximum(z, 0.5), None), z, length=3)
        out_ref[...] = jnp.broadcast_to(jnp.sum(z, axis=1, keepdims=True), z.shape)

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    x = jax.ShapeDtypeStruct((32, 128), jnp.float32)
    call = pl.pallas_call(kernel, out_shape=x, grid=(4,), in_specs=[block, block], out_specs=block, name="known")
    assert kernels(jax.make_jaxpr(call)(x, x).jaxpr) == {"known": Work(0.0, 4 * 6 * 8 * 128)}
