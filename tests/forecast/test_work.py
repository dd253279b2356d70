"""Work, collectives and kernels, read from a compiled program."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from jax.sharding import PartitionSpec as P

from bertjax.forecast import hlo
from bertjax.forecast.collectives import Collective, collectives
from bertjax.forecast.roofline import floor
from bertjax.forecast.work import hbm_bytes, kernel_flops, matrix_flops
from bertjax.models.kernels import LONGEST_FUSED, AttentionInputs, attend_by_fused, attend_by_splash
from bertjax.models.visibility import Visibility
from bertjax.runtime.devices import CHIPS
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


CALL = 'custom_call_target="tpu_custom_call"'


def fused_with_dropout(inputs):
    return attend_by_fused(inputs._replace(rate=0.1, key=jax.random.key(0)))


@pytest.mark.parametrize("attend", [attend_by_splash, fused_with_dropout])
def test_attention(attend):
    """Forward two products of [T, D] and [D, T] or the like, backward five, for each of two models in one program."""
    rows, seq_len, models, width = 2, 256, (4, 12), 64

    def loss(states, examples):
        attended = [attend(AttentionInputs(*own, Visibility(examples))) for own in states]
        return sum(jnp.sum(heads.astype(jnp.float32)) for heads in attended)

    sharding = NamedSharding(mesh("v5e:1x1"), PartitionSpec())
    states = [
        [jax.ShapeDtypeStruct((rows, seq_len, heads, width), jnp.bfloat16, sharding=sharding)] * 3 for heads in models
    ]
    examples = jax.ShapeDtypeStruct((rows, seq_len), jnp.int32, sharding=sharding)
    traced = jax.jit(jax.grad(loss)).trace(states, examples)
    assert traced.lower().compile().as_text().count(CALL) == 2 * len(models)  # forward and backward
    logits = sum(rows * heads * seq_len * seq_len for heads in models)
    assert kernel_flops(traced.jaxpr.jaxpr) == pytest.approx((4 + 10) * logits * width)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", LONGEST_FUSED)
def test_the_longest_rows_fit_into_the_memory_of_a_v4_chip(dtype):
    """Twice the length, or float32 at the length of bfloat16, does not: libtpu reports that VMEM is exhausted."""
    devices = mesh("v4:2x2x1")
    replicated = PartitionSpec()

    def gradients(query, key, value, examples):
        def loss(*states):
            inputs = AttentionInputs(*states, Visibility(examples))
            return jnp.sum(fused_with_dropout(inputs).astype(jnp.float32))

        return jax.grad(loss, argnums=(0, 1, 2))(query, key, value)

    seq_len, sharding = LONGEST_FUSED[dtype], NamedSharding(devices, replicated)
    states = jax.ShapeDtypeStruct((1, seq_len, 4, 64), jnp.dtype(dtype), sharding=sharding)
    examples = jax.ShapeDtypeStruct((1, seq_len), jnp.int32, sharding=sharding)
    on_each = jax.shard_map(gradients, mesh=devices, in_specs=replicated, out_specs=replicated, check_vma=False)
    text = jax.jit(on_each).trace(states, states, states, examples).lower().compile().as_text()
    assert text.count(CALL) == 2  # forward and backward


ROWS, WIDTH = 2048, 1024
FOUR = "v5e:2x2"


def on_shards(function, on, in_specs, out_specs):
    return jax.shard_map(function, mesh=on, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def only_collective(function, on, spec, out_spec, dtype="float32") -> Collective:
    """The only collective of a function of one global array [ROWS, WIDTH]."""
    program = module(on_shards(function, on, spec, out_spec), ((ROWS, WIDTH), dtype, spec), on=on)
    [collective] = collectives(program, on.devices.ravel())
    return collective


@pytest.mark.parametrize(
    "axes, chips, copies",
    [(("chip", "core"), 4, 1), ("chip", 4, 2), ("core", 1, 0)],
    ids=["all devices", "one core of each chip", "both cores of a chip"],
)
def test_cores_share_the_links_of_their_chip(axes, chips, copies):
    """A chip sends the sum of its cores once; the two sums of single cores one after the other; its own sum never."""
    on = mesh("v3:2x2", ("chip", "core"), (4, 2))
    collective = only_collective(lambda x: jax.lax.psum(x, axes), on, P(("chip", "core")), P())
    assert (collective.kind, collective.chips, collective.devices) == ("all-reduce", chips, 2)
    assert collective.sent == copies * collective.bytes * 2 * 3 / 4
    at_floor = floor(CHIPS["v3"], 0.0, 0.0, [collective], steps=1).interconnect
    assert at_floor == pytest.approx(copies * ROWS // 8 * WIDTH * 4 * 1.5 / (340e12 / 1024))


def test_an_overlapping_collective_is_counted_once():
    """A gather that overlaps with products becomes several fusions, each with a copy of it."""

    def function(x, w, v):
        gathered = jax.lax.all_gather(w, "data", tiled=True)
        for _ in range(4):
            x = jnp.tanh(x @ v)
        return x @ gathered

    on = mesh(FOUR)
    run = on_shards(function, on, (P("data"), P("data"), P()), P("data"))
    arrays = [((8192, 2048), "bfloat16", P("data")), ((2048, 2048), "bfloat16", P("data"))]
    program = module(run, *arrays, ((2048, 2048), "bfloat16", P()), on=on)
    [collective] = collectives(program, on.devices.ravel())
    assert collective.asynchronous and (collective.kind, collective.runs, collective.bytes) == (
        "all-gather",
        1,
        2048 * 2048 * 2,
    )


def test_collectives_between_slices():
    on = mesh("2xv5e:2x2", ("data", "fsdp"), (2, 4))
    run = on_shards(lambda x: jax.lax.psum(x, "data"), on, P("data", "fsdp"), P(None, "fsdp"))
    collective = collectives(module(run, ((ROWS, WIDTH), "float32", P("data", "fsdp")), on=on), on.devices.ravel())
    assert all(one.between_slices and one.asynchronous for one in collective)
    assert sum(one.sent for one in collective) == ROWS // 2 * WIDTH // 4 * 4
