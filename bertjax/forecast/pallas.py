"""The work of Pallas kernels; the compiled program contains only their calls."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bertjax.forecast import vector
from bertjax.forecast.hlo import Instruction, Module


class Work(NamedTuple):
    """The work of one call of a kernel.

    Attributes:
      flops: of its matrix products.
      operations: of the vector unit, see `bertjax.forecast.vector`.
    """

    flops: float
    operations: float


def kernels(jaxpr: Any) -> dict[str, Work]:
    """Return {kernel: work of one call} for all kernels of a traced function.

    It is counted in the program of the kernel. Every point of the grid counts, with all branches.

    Args:
      jaxpr: the jaxpr of a `jax.stages.Traced`.
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
    """Return the work of a call in a compiled program, or None if its kernel was not traced.

    The name of a call has that of its kernel in it, and may begin with the transformations of JAX (`jvp_`).
    """
    names = [name for name in kernels if name in call.name]
    return kernels[max(names, key=len)] if names else None


def calls(module: Module) -> Iterator[tuple[Instruction, int]]:
    """Yield (call of a kernel, how often it runs)."""
    for _, instruction, runs in module:
        if 'custom_call_target="tpu_custom_call"' in instruction.attributes:
            yield instruction, runs


def _total(jaxpr: Any, count: Callable[[Any], int]) -> int:
    """Return the sum of a count over the equations of a jaxpr and of those inside of it."""
    total = 0
    for equation in jaxpr.eqns:
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += count(equation) + times * sum(_total(inner, count) for inner in _inner(equation))
    return total


def _product(equation: Any) -> int:
    """Return the FLOPs of an equation that is a matrix product; 0 for others."""
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
    """Return the jaxprs that an equation runs."""
    values = itertools.chain.from_iterable(
        value if isinstance(value, (tuple, list)) else (value,) for value in equation.params.values()
    )
    return [getattr(value, "jaxpr", value) for value in values if hasattr(getattr(value, "jaxpr", value), "eqns")]
