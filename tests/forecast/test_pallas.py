"""FLOPs of kernels, counted in their traced programs."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.forecast import hlo
from bertjax.forecast.pallas import calls, flops_of_call, kernel_flops
from bertjax.models.kernels import attend_by_fused, attend_by_splash
from bertjax.models.visibility import Visibility
from tests.forecast.programs import mesh


def fused_with_dropout(*arguments):
    return attend_by_fused(*arguments, 0.1, jax.random.key(0))


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
    counted = {call.name: flops_of_call(call, kernel_flops(traced.jaxpr.jaxpr)) for call, _ in calls(module)}
    product = 2 * rows * heads * seq_len * seq_len * width
    assert sorted(counted.values()) == pytest.approx([2 * product, 5 * product])
