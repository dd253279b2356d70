"""Vector unit operations: elementwise work and reductions in a compiled program and in its kernels.

An operation counts once per result element, a reduction once per input element. That is a lower bound, because an
exponential or a division takes several operations. Dtype conversions are left out, since a load or the matrix unit may
do them, and so are moves between lanes.
"""

import math
from typing import Any

from bertjax.forecast.hlo import Module

# XLA opcodes, then JAX primitives.
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
    """Count the operations of a compiled program on one device, without kernels."""
    total = 0
    for computation, instruction, runs in module:
        if instruction.opcode in _ELEMENTWISE:
            total += runs * math.prod(instruction.arrays[0].shape)
        elif instruction.opcode in ("reduce", "reduce-window"):
            total += runs * math.prod(computation.instructions[instruction.operands[0]].arrays[0].shape)
    return float(total)


def operations_of(equation: Any) -> int:
    """Count the operations of a jaxpr equation, without nested jaxprs."""
    name = equation.primitive.name
    if name in _PRIMITIVES:
        return math.prod(equation.outvars[0].aval.shape)
    return math.prod(equation.invars[0].aval.shape) if name in _REDUCTIONS else 0
