"""FLOPs and bytes: programs whose work is known, compiled for chips that are not there."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from bertjax.forecast import hlo
from bertjax.forecast.roofline import Floor
from bertjax.forecast.work import hbm_bytes, matrix_flops
from tests.forecast.programs import compiled, mesh, module

ONE = "v5e:1x1"


@pytest.mark.parametrize(
    "equation, left, right, multiply_adds",
    [
        ("mk,kn->mn", (512, 256), (256, 384), 512 * 256 * 384),
        ("bqhd,bkhd->bhqk", (4, 128, 8, 64), (4, 128, 8, 64), 4 * 8 * 128 * 128 * 64),
        ("bhqk,bkhd->bqhd", (4, 8, 128, 128), (4, 128, 8, 64), 4 * 8 * 128 * 128 * 64),
        ("btd,btf->df", (16, 128, 256), (16, 128, 512), 16 * 128 * 256 * 512),
    ],
)
def test_flops_of_a_product(equation, left, right, multiply_adds):
    arrays = ((left, "bfloat16", P()), (right, "bfloat16", P()))
    program = compiled(lambda x, y: jnp.einsum(equation, x, y), *arrays, on=mesh(ONE))
    counted = matrix_flops(hlo.parse(program.as_text()))
    assert counted == 2 * multiply_adds
    assert counted == pytest.approx(program.cost_analysis()["flops"], rel=0.01)


# As XLA for TPU writes a product of batches [8, 2] of matrices [32, 64] and [64, 32]; and a window with padding.
CONVOLUTIONS = """
ENTRY %main (a: bf16[8,32,2,64], b: bf16[8,32,2,64]) -> bf16[8,2,32,32] {
  %a = bf16[8,32,2,64]{3,2,1,0} parameter(0)
  %b = bf16[8,32,2,64]{3,2,1,0} parameter(1)
  %product = bf16[8,2,32,32]{2,3,1,0} convolution(%a, %b), window={size=8x2 stride=7x1 lhs_dilate=8x2}, \
dim_labels=0b1f_0o1i->01bf
  %x = bf16[4,28,64]{2,1,0} parameter(2)
  %kernel = bf16[3,64,128]{2,1,0} parameter(3)
  ROOT %padded = bf16[4,30,128]{2,1,0} convolution(%x, %kernel), window={size=3 pad=2_2}, dim_labels=b0f_0io->b0f
}
"""


def test_flops_of_a_convolution_exclude_padding_and_holes():
    # Of 30 x 3 pairs of an output and a place of the kernel, 6 see nothing but padding.
    assert matrix_flops(hlo.parse(CONVOLUTIONS)) == 2 * 8 * 2 * 32 * 32 * 64 + 2 * 84 * 4 * 64 * 128


@pytest.mark.parametrize("length", [2, 50])
def test_a_loop_counts_as_often_as_it_runs(length):
    def function(x, w_LDD):
        return jax.lax.scan(lambda x, w_DD: (jnp.tanh(x @ w_DD), None), x, w_LDD)[0]

    arrays = (((4096, 1024), "bfloat16", P()), ((length, 1024, 1024), "bfloat16", P()))
    program = module(function, *arrays, on=mesh(ONE))
    assert program.loops_of_unknown_length == 0
    assert matrix_flops(program) == length * 2 * 4096 * 1024 * 1024
    weights = length * 1024 * 1024 * 2
    # The stack of weights is read once in all, a slice a time; the activations may stay in the core's own memory.
    assert weights <= hbm_bytes(program) <= 1.2 * weights + (length + 1) * 4 * 4096 * 1024 * 2


def test_a_loop_of_unknown_length_is_reported():
    def function(x):
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 1e6, lambda x: x @ x, x)

    program = module(function, ((256, 256), "float32", P()), on=mesh(ONE))
    assert program.loops_of_unknown_length == 1


def test_bytes_of_elementwise_work():
    size = 64 << 20
    program = module(lambda x, y: x * 2 + y, ((size,), "float32", P()), ((size,), "float32", P()), on=mesh(ONE))
    assert hbm_bytes(program) == 3 * 4 * size


def test_bytes_of_a_row_written_in_place():
    rows, width = 4096, 8192

    def function(x, row):
        return jax.lax.dynamic_update_slice(x, row, (7, 0))

    on = mesh(ONE)
    sharding = jax.sharding.NamedSharding(on, P())
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding) for shape in ((rows, width), (1, width))]
    text = jax.jit(function, donate_argnums=0).lower(*arguments).compile().as_text()
    assert hbm_bytes(hlo.parse(text)) < 10 * 4 * width


# A stack of residuals in memory, in another order of its elements: each layer writes one residual and reads one. And a
# quarter of an array that is prefetched into the core's own memory.
STACK = """
%other_order (p: f32[8,64,128]) -> f32[8,64,128] {
  %p = f32[8,64,128]{2,1,0} parameter(0)
  ROOT %c = f32[8,64,128]{1,2,0} copy(%p)
}

%write (stack: f32[8,64,128], one: f32[1,64,128], i: s32[]) -> f32[8,64,128] {
  %stack = f32[8,64,128]{2,1,0} parameter(0)
  %same = f32[8,64,128]{1,2,0} fusion(%stack), kind=kLoop, output_to_operand_aliasing={{}: (0, {})}, calls=%other_order
  %one = f32[1,64,128]{2,1,0:S(1)} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %update = f32[8,64,128]{2,1,0} dynamic-update-slice(%same, %one, %i, %zero, %zero)
}

%read (stack: f32[8,64,128], i: s32[]) -> f32[64,128] {
  %stack = f32[8,64,128]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,64,128]{2,1,0} dynamic-slice(%stack, %i, %zero, %zero), dynamic_slice_sizes={1,64,128}
  ROOT %flat = f32[64,128]{1,0:S(1)} bitcast(%slice)
}

ENTRY %main (stack: f32[8,64,128], one: f32[1,64,128], i: s32[]) -> f32[8,64,128] {
  %stack = f32[8,64,128]{2,1,0} parameter(0)
  %one = f32[1,64,128]{2,1,0:S(1)} parameter(1)
  %i = s32[]{:S(6)} parameter(2)
  %taken = f32[64,128]{1,0:S(1)} fusion(%stack, %i), kind=kLoop, calls=%read
  %ahead = ((f32[8,64,128]{2,1,0}), f32[2,64,128]{2,1,0:S(1)}, s32[]{:S(2)}) slice-start(%stack), slice={[0:2]}
  %there = f32[2,64,128]{2,1,0:S(1)} slice-done(%ahead)
  ROOT %written = f32[8,64,128]{2,1,0} fusion(%stack, %one, %i), kind=kLoop, calls=%write
}
"""


def test_a_loop_over_a_stack_reads_one_layer_at_a_time():
    layer = 64 * 128 * 4
    assert hbm_bytes(hlo.parse(STACK)) == pytest.approx(layer + 2 * layer + layer, abs=8)


def test_arrays_that_reach_memory():
    def function(x, w):
        return jnp.sum(jnp.tanh(x @ w), axis=1)

    program = module(function, ((4096, 512), "bfloat16", P()), ((512, 8192), "bfloat16", P()), on=mesh(ONE))
    assert ("bf16", (4096, 512)) in program.arrays
    assert ("bf16", (4096, 1)) not in program.arrays


FLOOR = Floor(compute=4.5, memory=3.0, interconnect=2.0, network=1.0, synchronous=1.5)


def test_the_two_bounds_of_a_step():
    assert (FLOOR.seconds, FLOOR.seconds_without_overlap) == (6.0, 10.5)
    alone = Floor(compute=4.0, memory=0.0, interconnect=0.0, network=0.0)
    assert alone.seconds == alone.seconds_without_overlap == 4.0


@pytest.mark.parametrize(
    "changes, description",
    [
        ({}, "compute plus synchronous collectives"),
        ({"synchronous": 0.0}, "compute"),
        ({"interconnect": 9.0}, "interconnect"),  # the synchronous collectives are a part of it
    ],
)
def test_what_binds_is_named_with_the_collectives_that_it_waits_for(changes, description):
    assert dataclasses.replace(FLOOR, **changes).description == description
