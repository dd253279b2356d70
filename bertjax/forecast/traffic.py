"""Which lines of the source move how many bytes between core and HBM in a compiled program."""

import collections
import dataclasses
from pathlib import Path

from bertjax.forecast.hlo import Computation, Instruction, Module
from bertjax.forecast.work import transfers

_PACKAGE = Path(__file__).resolve().parents[1]
# In the name of an operation of the backward pass.
_BACKWARD = "transpose("
# In the attributes of an operation whose line is known.
_FRAME = "stack_frame_id"


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The bytes that one line of the source moves.

    Attributes:
      line: file and line within the package, such as `models/layers.py:57`; the innermost one of several. A copy counts
        for the line that uses it, and what has no line at all is named by its opcode.
      is_backward: whether it is in the backward pass.
      bytes: bytes that one device reads from and writes to its HBM.
    """

    line: str
    is_backward: bool
    bytes: float


def by_line(module: Module) -> list[Traffic]:
    """Return the traffic of all lines, the most first. A fusion of several lines counts for that of its result."""
    sums: collections.Counter[tuple[str, bool]] = collections.Counter()
    for computation, instruction, count in transfers(module):
        source = _source(module, computation, instruction)
        sums[_line(module, source) or instruction.opcode, _BACKWARD in source.attributes] += count
    return [Traffic(line, is_backward, count) for (line, is_backward), count in sums.most_common()]


def _source(module: Module, computation: Computation, instruction: Instruction) -> Instruction:
    """Return the instruction that says where another one comes from.

    It is the instruction itself, the last one in a fusion, the first one that uses its value, or its operand.
    """
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
