"""The work of kernels, counted in their traced programs."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.forecast import hlo
from bertjax.forecast.work import Call, calls, flops_of_call, kernels
from bertjax.models.kernels import LONGEST_FUSED, attend_by_fused, attend_by_splash
from bertjax.models.visibility import Visibility
from tests.forecast.programs import mesh


def fused_with_dropout(*arguments):
    return attend_by_fused(*arguments, 0.1, jax.random.key(0))


@pytest.mark.parametrize("attend", [attend_by_splash, fused_with_dropout])
def test_attention(attend):
    """Forward two products of [T, D] and [D, T] or the like, backward five, for each of two models in one program."""
    rows, seq_len, models, width = 2, 256, (4, 12), 64

    def loss(states, examples):
        attended = [attend(*own, Visibility(examples)) for own in states]
        return sum(jnp.sum(heads.astype(jnp.float32)) for heads in attended)

    sharding = NamedSharding(mesh("v5e:1x1"), PartitionSpec())
    states = [
        [jax.ShapeDtypeStruct((rows, seq_len, heads, width), jnp.bfloat16, sharding=sharding)] * 3 for heads in models
    ]
    examples = jax.ShapeDtypeStruct((rows, seq_len), jnp.int32, sharding=sharding)
    traced = jax.jit(jax.grad(loss)).trace(states, examples)
    module = hlo.parse(traced.lower().compile().as_text())
    traced_kernels = kernels(traced.jaxpr.jaxpr)
    counted = [flops_of_call(call, traced_kernels) for call, _ in calls(module)]
    logits = [rows * heads * seq_len * seq_len for heads in models]
    expected = [products * count * width for count in logits for products in (4, 10)]
    assert sorted(counted) == pytest.approx(sorted(expected))


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


def test_products_of_a_kernel():
    """Three products in a loop, for each of 4 blocks of 8 rows."""

    def kernel(x_ref, y_ref, out_ref):
        y = y_ref[...]
        out_ref[...], _ = jax.lax.scan(lambda z, _: (z @ y, None), x_ref[...], length=3)

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    whole = pl.BlockSpec((128, 128), lambda i: (0, 0))
    x, y = jax.ShapeDtypeStruct((32, 128), jnp.float32), jax.ShapeDtypeStruct((128, 128), jnp.float32)
    call = pl.pallas_call(kernel, out_shape=x, grid=(4,), in_specs=[block, whole], out_specs=block, name="known")
    known = Call("known", ((32, 128), (128, 128)), ((32, 128),))
    assert kernels(jax.make_jaxpr(call)(x, y).jaxpr) == {known: 4 * 3 * 2 * 8 * 128 * 128}


def test_calls_that_differ_in_an_operand_only():
    """As models of equal width do if their heads are of different sizes: the gradients have the same shapes."""

    def kernel(x_ref, scale_ref, out_ref):
        out_ref[...] = x_ref[...] + jnp.sum(scale_ref[...] @ scale_ref[...].T)

    x = jax.ShapeDtypeStruct((8, 128), jnp.float32)

    def both(x):
        call = pl.pallas_call(kernel, out_shape=x, name="scaled")
        return call(x, jnp.ones((8, 128))), call(x, jnp.ones((16, 128)))

    traced = kernels(jax.make_jaxpr(both)(x).jaxpr)
    for rows in (8, 16):
        call = Call("jvp_scaled_.3", ((8, 128), (rows, 128)), ((8, 128),))
        assert flops_of_call(call, traced) == 2 * rows * 128 * rows
    assert flops_of_call(Call("jvp_scaled_.3", ((8, 128),), ((8, 128),)), traced) is None
