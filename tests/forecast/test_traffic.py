"""Which line of the source moves which bytes."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from bertjax.forecast import hlo, traffic
from bertjax.forecast.roofline import Floor
from bertjax.forecast.work import hbm_bytes
from bertjax.models.activations import gelu
from tests.forecast.programs import mesh, module

ROWS, WIDTH = 8192, 4096


def test_bytes_are_those_of_the_lines_that_move_them():
    def loss(x_RD):
        return jnp.sum(gelu(x_RD) ** 2)

    program = module(jax.value_and_grad(loss), ((ROWS, WIDTH), "float32", P()), on=mesh("v5e:1x1"))
    found = traffic.by_line(program)
    assert sum(one.bytes for one in found) == hbm_bytes(program)
    assert [one.bytes for one in found] == sorted((one.bytes for one in found), reverse=True)
    backward = [one for one in found if one.is_backward and one.line.startswith("models/activations.py:")]
    assert sum(one.bytes for one in backward) >= 2 * 4 * ROWS * WIDTH  # it reads x and writes its gradient


FRAMES = """HloModule jit_f

FileNames
1 "/elsewhere/flax/normalization.py"
2 "{package}/models/layers.py"

FunctionNames
1 "f"

FileLocations
1 {{file_name_id=2 function_name_id=1 line=57 end_line=57 column=1 end_column=2}}
2 {{file_name_id=1 function_name_id=1 line=99 end_line=99 column=1 end_column=2}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
2 {{file_location_id=2 parent_frame_id=2}}

%body (p: f32[4]) -> f32[4] {{
  %p = f32[4]{{0}} parameter(0)
  ROOT %inner = f32[4]{{0}} negate(%p), metadata={{op_name="transpose(f)/neg" stack_frame_id=2}}
}}

ENTRY %main (x: f32[4]) -> f32[4] {{
  %x = f32[4]{{0}} parameter(0)
  %unnamed = f32[4]{{0}} fusion(%x), kind=kLoop, calls=%body
  %copied = f32[4]{{0}} copy(%x)
  %used = f32[4]{{0}} bitcast(%copied), metadata={{op_name="f/bitcast" stack_frame_id=1}}
  ROOT %last = f32[4]{{0}} negate(%unnamed)
}}
"""


def test_a_line_outside_of_the_package_counts_for_the_line_that_called_it():
    program = hlo.parse(FRAMES.format(package=traffic.__file__.removesuffix("/forecast/traffic.py")))
    line = "models/layers.py:57"
    assert set(traffic.by_line(program)) == {
        traffic.Traffic(line, True, 32),  # of the fusion
        traffic.Traffic(line, False, 32),  # of the copy
        traffic.Traffic("negate", False, 32),
    }
    alone = hlo.parse(FRAMES.format(package="/elsewhere"))
    assert traffic.by_line(alone)[0] == traffic.Traffic("normalization.py:99", True, 32)


def test_the_two_bounds_of_a_step():
    floor = Floor(compute=4.0, vector=4.5, memory=3.0, interconnect=2.0, network=1.0, synchronous=1.5)
    assert (floor.seconds, floor.seconds_without_overlap) == (6.0, 14.5)
    alone = dataclasses.replace(floor, vector=0.0, memory=0.0, interconnect=0.0, network=0.0, synchronous=0.0)
    assert alone.seconds == alone.seconds_without_overlap == 4.0


@pytest.mark.parametrize(
    "changes, description",
    [
        ({}, "vector plus synchronous collectives"),
        ({"synchronous": 0.0}, "vector"),
        ({"interconnect": 9.0}, "interconnect"),  # the synchronous collectives are a part of it
    ],
)
def test_what_binds_is_named_with_the_collectives_that_it_waits_for(changes, description):
    floor = Floor(compute=4.0, vector=4.5, memory=3.0, interconnect=2.0, network=1.0, synchronous=1.5)
    assert dataclasses.replace(floor, **changes).description == description


def test_a_value_with_many_users_is_followed_once():
    """Forty values of two users each have 2^40 paths."""
    lines = ["HloModule deep", "", "ENTRY %main (a0: f32[8]) -> f32[8] {", "  %a0 = f32[8]{0} parameter(0)"]
    for depth in range(40):
        lines += [f"  %{name}{depth} = f32[8]{{0}} negate(%a{depth})" for name in "bc"]
        root = "ROOT " * (depth == 39)
        lines.append(f"  {root}%a{depth + 1} = f32[8]{{0}} add(%b{depth}, %c{depth})")
    program = hlo.parse("\n".join([*lines, "}", ""]))
    assert {found.line for found in traffic.by_line(program)} == {"negate", "add"}
