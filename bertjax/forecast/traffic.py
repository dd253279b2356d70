"""HBM traffic by source line in a compiled program."""

import collections
import dataclasses
from pathlib import Path

from bertjax.forecast.hlo import Computation, Instruction, Module
from bertjax.forecast.work import transfers

_PACKAGE = Path(__file__).resolve().parents[1]
# JAX's name for the transposition in a backward pass; XLA keeps it in the operation name.
_BACKWARD = "transpose("
# Attribute of instructions with a known source line.
_FRAME = "stack_frame_id"


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that one source line moves.

    Attributes:
      line: innermost file and line within the package, such as `models/layers.py:57`. A copy counts for the line that
        uses it. Traffic without any source line is listed under its opcode.
      is_backward: whether it belongs to the backward pass.
      bytes: HBM reads and writes on one device.
    """

    line: str
    is_backward: bool
    bytes: float


def by_line(module: Module) -> list[Traffic]:
    """Return the traffic of all source lines, largest first. A fusion counts for the line of its result."""
    sums: collections.Counter[tuple[str, bool]] = collections.Counter()
    for computation, instruction, count in transfers(module):
        source = _source(module, computation, instruction)
        sums[_line(module, source) or instruction.opcode, _BACKWARD in source.attributes] += count
    return [Traffic(line, is_backward, count) for (line, is_backward), count in sums.most_common()]


def _source(module: Module, computation: Computation, instruction: Instruction) -> Instruction:
    """Return the nearest instruction with a known source line.

    It is the instruction itself, the last one in its fusion, the first user of its value, or one of its operands.
    """
    # Breadth-first through the users: copies and layout changes that XLA inserts have no source line of their own.
    near, seen = collections.deque([instruction]), {instruction.name}
    while near:
        nearest = near.popleft()
        inside = module.computations[nearest.called[0]].instructions.values() if nearest.opcode == "fusion" else ()
        for one in (nearest, *reversed(inside)):
            if _FRAME in one.attributes:
                return one
        users = [user for user in computation.uses[nearest.name] if user.name not in seen]
        seen.update(user.name for user in users)
        near.extend(users)
    operands = [computation.instructions[name] for name in instruction.operands]
    return next((operand for operand in operands if _FRAME in operand.attributes), instruction)


def _line(module: Module, instruction: Instruction) -> str:
    lines = list(module.lines(instruction))
    own = next(((file, line) for file, line in lines if _PACKAGE in Path(file).parents), None)
    if own:
        return f"{Path(own[0]).relative_to(_PACKAGE)}:{own[1]}"
    return f"{Path(lines[0][0]).name}:{lines[0][1]}" if lines else ""
