"""Matrix-product FLOPs in Pallas kernels. The compiled program contains only their calls."""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from bertjax.forecast.hlo import Module


class Call(NamedTuple):
    """A kernel at one set of shapes: two models in one program call the same kernel at different shapes.

    Attributes:
      name: name of the kernel; in a compiled program, that of the instruction, which contains it.
      operands: shapes of the arguments.
      results: shapes of the results.
    """

    name: str
    operands: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]


def kernels(jaxpr: Any) -> dict[Call, float]:
    """Return {call of a kernel: its FLOPs} for all kernels in a traced function.

    The count covers the kernel's own jaxpr at every grid point, all branches included.

    Args:
      jaxpr: jaxpr from `jax.stages.Traced`.
    """
    flops = {}
    for equation in _equations(jaxpr):
        if equation.primitive.name == "pallas_call":
            points = math.prod(equation.params["grid_mapping"].grid)
            shapes = (tuple(value.aval.shape for value in values) for values in (equation.invars, equation.outvars))
            flops[Call(equation.params["name"], *shapes)] = float(points * _total(equation.params["jaxpr"]))
    return flops


def flops_of_call(call: Call, kernels: dict[Call, float]) -> float | None:
    """Return the FLOPs of a call in a compiled program, or None if its kernel was not traced at these shapes."""
    # A call's name contains the kernel's name, maybe after JAX transformations (`jvp_`). The longest match wins,
    # since one kernel's name may be part of another's.
    traced = [one for one in kernels if one.name in call.name and one[1:] == call[1:]]
    return kernels[max(traced, key=lambda one: len(one.name))] if traced else None


def calls(module: Module) -> Iterator[tuple[Call, int]]:
    """Yield (kernel call, number of executions)."""
    for computation, instruction, runs in module:
        if 'custom_call_target="tpu_custom_call"' in instruction.attributes:
            operands = (computation.instructions[name].arrays for name in instruction.operands)
            shapes = tuple(array.shape for arrays in operands for array in arrays)
            yield Call(instruction.name, shapes, tuple(array.shape for array in instruction.arrays)), runs


def _total(jaxpr: Any) -> int:
    """Return the FLOPs of a jaxpr, nested jaxprs included."""
    total = 0
    for equation in jaxpr.eqns:
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += _product(equation) + times * sum(_total(inner) for inner in _inner(equation))
    return total


def _product(equation: Any) -> int:
    """Return the FLOPs of a matrix product; 0 for any other equation."""
    if equation.primitive.name != "dot_general":
        return 0
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in _inner(equation):
            yield from _equations(inner)


def _inner(equation: Any) -> list[Any]:
    """Return the jaxprs among an equation's parameters."""
    values = itertools.chain.from_iterable(
        value if isinstance(value, (tuple, list)) else (value,) for value in equation.params.values()
    )
    return [getattr(value, "jaxpr", value) for value in values if hasattr(getattr(value, "jaxpr", value), "eqns")]
