"""FLOPs of Pallas kernels; the compiled program contains only their calls."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from bertjax.forecast.hlo import Instruction, Module


def kernel_flops(jaxpr: Any) -> dict[str, float]:
    """Return {kernel: FLOPs of the matrix products of one call} for all kernels of a traced function.

    Every point of the grid counts, with all branches of the kernel.

    Args:
      jaxpr: the jaxpr of a `jax.stages.Traced`.
    """
    flops = {}
    for equation in _equations(jaxpr):
        if equation.primitive.name == "pallas_call":
            points = math.prod(equation.params["grid_mapping"].grid)
            flops[equation.params["name"]] = float(points * _products(equation.params["jaxpr"]))
    return flops


def flops_of_call(call: Instruction, kernels: dict[str, float]) -> float | None:
    """Return the FLOPs of a call in a compiled program, or None if its kernel was not traced.

    The name of a call has that of its kernel in it, and may begin with the transformations of JAX (`jvp_`).
    """
    names = [name for name in kernels if name in call.name]
    return kernels[max(names, key=len)] if names else None


def calls(module: Module) -> Iterator[tuple[Instruction, int]]:
    """Yield (call of a kernel, how often it runs)."""
    for _, instruction, runs in module:
        if 'custom_call_target="tpu_custom_call"' in instruction.attributes:
            yield instruction, runs


def _products(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += times * sum(map(_products, _inner(equation)))
    return total


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
