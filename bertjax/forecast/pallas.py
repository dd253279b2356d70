"""FLOPs and vector operations in Pallas kernels. The compiled program contains only their calls."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bertjax.forecast import vector
from bertjax.forecast.hlo import Instruction, Module


class Work(NamedTuple):
    """Work of one kernel call.

    Attributes:
      flops: matrix-product FLOPs.
      operations: vector unit operations, see `bertjax.forecast.vector`.
    """

    flops: float
    operations: float


def kernels(jaxpr: Any) -> dict[str, Work]:
    """Return {kernel: work of one call} for all kernels in a traced function.

    The count covers the kernel's own jaxpr at every grid point, all branches included.

    Args:
      jaxpr: jaxpr from `jax.stages.Traced`.
    """
    work = {}
    for equation in _equations(jaxpr):
        if equation.primitive.name == "pallas_call":
            points = math.prod(equation.params["grid_mapping"].grid)
            inside = equation.params["jaxpr"]
            counts = (_total(inside, count) for count in (_product, vector.operations_of))
            work[equation.params["name"]] = Work(*(float(points * count) for count in counts))
    return work


def work_of_call(call: Instruction, kernels: dict[str, Work]) -> Work | None:
    """Return the work of a call in a compiled program, or None if its kernel was not traced."""
    # A call's name contains the kernel's name, maybe after JAX transformations (`jvp_`). The longest match wins,
    # since one kernel's name may be part of another's.
    names = [name for name in kernels if name in call.name]
    return kernels[max(names, key=len)] if names else None


def calls(module: Module) -> Iterator[tuple[Instruction, int]]:
    """Yield (kernel call, number of executions)."""
    for _, instruction, runs in module:
        if 'custom_call_target="tpu_custom_call"' in instruction.attributes:
            yield instruction, runs


def _total(jaxpr: Any, count: Callable[[Any], int]) -> int:
    """Sum a count over the equations of a jaxpr, nested jaxprs included."""
    total = 0
    for equation in jaxpr.eqns:
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += count(equation) + times * sum(_total(inner, count) for inner in _inner(equation))
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
