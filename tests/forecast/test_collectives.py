"""Collectives: programs whose collectives are known, compiled for chips that are not there."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from bertjax.forecast.collectives import Collective, collectives, table
from bertjax.forecast.roofline import floor
from bertjax.runtime.chips import CHIPS
from tests.forecast.programs import mesh, module

ROWS, WIDTH = 2048, 1024
FOUR = "v5e:2x2"


def on_shards(function, on, in_specs, out_specs):
    return jax.shard_map(function, mesh=on, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def only_collective(function, on, spec, out_spec, dtype="float32") -> Collective:
    """The only collective of a function of one global array [ROWS, WIDTH]."""
    program = module(on_shards(function, on, spec, out_spec), ((ROWS, WIDTH), dtype, spec), on=on)
    [collective] = collectives(program, on.devices.ravel())
    return collective


def test_all_reduce():
    collective = only_collective(lambda x: jax.lax.psum(x, "data"), mesh(FOUR), P("data"), P())
    assert (collective.kind, collective.dtype, collective.group, collective.runs) == ("all-reduce", "f32", 4, 1)
    assert collective.bytes == ROWS // 4 * WIDTH * 4
    assert collective.sent == collective.bytes * 2 * 3 / 4


def test_all_gather():
    collective = only_collective(
        lambda x: jax.lax.all_gather(x, "data", tiled=True), mesh(FOUR), P("data"), P(), "bfloat16"
    )
    assert (collective.kind, collective.dtype, collective.bytes) == ("all-gather", "bf16", ROWS * WIDTH * 2)
    assert collective.sent == collective.bytes * 3 / 4


def test_reduce_scatter():
    scatter = functools.partial(jax.lax.psum_scatter, axis_name="data", tiled=True)
    collective = only_collective(scatter, mesh(FOUR), P(), P("data"))
    assert (collective.kind, collective.bytes) == ("reduce-scatter", ROWS * WIDTH * 4)
    assert collective.sent == collective.bytes * 3 / 4


def test_permute():
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    collective = only_collective(lambda x: jax.lax.ppermute(x, "data", ring), mesh(FOUR), P("data"), P("data"))
    assert (collective.kind, collective.sent) == ("collective-permute", ROWS // 4 * WIDTH * 4)


def test_a_group_is_an_axis_of_the_mesh():
    on = mesh(FOUR, ("data", "fsdp"), (2, 2))
    collective = only_collective(lambda x: jax.lax.psum(x, "fsdp"), on, P(("data", "fsdp")), P("data"))
    assert collective.group == 2 and collective.sent == collective.bytes
    assert collective.links == 1 / 2  # a line of the two axes of a slice


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


@pytest.mark.parametrize("length", [3, 40])
def test_a_loop_counts_as_often_as_it_runs(length):
    def function(x, w):
        def body(x, _):
            return jnp.tanh(jax.lax.psum(x @ w, "data")) * 0.1, None

        return jax.lax.scan(body, x, None, length=length)[0]

    on = mesh(FOUR)
    run = on_shards(function, on, (P(None, "data"), P("data")), P(None, "data"))
    arrays = (((256, 4096), "float32", P(None, "data")), ((4096, 1024), "float32", P("data")))
    collective = [one for one in collectives(module(run, *arrays, on=on), on.devices.ravel()) if one.bytes > 1000]
    assert sum(one.runs for one in collective) == length
    assert {one.bytes for one in collective} == {256 * 1024 * 4}


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


def test_the_table_sums_collectives_of_one_kind():
    one = Collective("all-gather", "bf16", 100, 4, 3, True)
    other = Collective("all-gather", "bf16", 10, 8, 1, True)
    synchronous = Collective("all-gather", "bf16", 1000, 4, 1, False)
    assert table([one, synchronous, other]) == [synchronous, Collective("all-gather", "bf16", 310, 8, 4, True)]
    apart = dataclasses.replace(one, devices=2)
    assert len(table([one, apart])) == 2
