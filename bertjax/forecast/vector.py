"""Operations of the vector unit: elementwise work of a compiled program, and of the kernels that it calls.

Each operation counts once for each element of its result, and a reduction once for each element that it reads. That is
a lower bound: an exponential or a division takes several operations. Changes of the number format, which a load or a
matrix unit may do, and what moves elements between lanes are left out.
"""

import math
from typing import Any

from bertjax.forecast.hlo import Module

# Opcodes of XLA, and primitives of JAX.
_ELEMENTWISE = frozenset(
    "abs add and atan2 cbrt ceil clamp compare cosine count-leading-zeros divide erf exponential "
    "exponential-minus-one floor is-finite log log-plus-one logistic maximum minimum multiply negate not or popcnt "
    "power remainder round-nearest-afz round-nearest-even rsqrt select shift-left shift-right-arithmetic "
    "shift-right-logical sign sine sqrt subtract tan tanh xor".split()
)
_PRIMITIVES = frozenset(
    "abs add and atan2 cbrt ceil clamp clz cos div eq erf exp exp2 expm1 floor ge gt integer_pow "
    "is_finite le log log1p logistic lt max min mul ne neg not or population_count pow rem round rsqrt select_n "
    "shift_left shift_right_arithmetic shift_right_logical sign sin sqrt square sub tan tanh xor".split()
)
_REDUCTIONS = frozenset("argmax argmin cumsum reduce_and reduce_max reduce_min reduce_or reduce_sum".split())


def operations(module: Module) -> float:
    """Return the operations of a compiled program on one device, without those of kernels."""
    total = 0
    for computation, instruction, runs in module:
        if instruction.opcode in _ELEMENTWISE:
            total += runs * math.prod(instruction.arrays[0].shape)
        elif instruction.opcode in ("reduce", "reduce-window"):
            total += runs * math.prod(computation.instructions[instruction.operands[0]].arrays[0].shape)
    return float(total)


def operations_of(equation: Any) -> int:
    """Return the operations of an equation of a jaxpr, without those of jaxprs inside of it."""
    name = equation.primitive.name
    if name in _PRIMITIVES:
        return math.prod(equation.outvars[0].aval.shape)
    return math.prod(equation.invars[0].aval.shape) if name in _REDUCTIONS else 0
