"""The parser of compiled programs: computations, their instructions, and how often each of them runs.

It reads the text of `jax.stages.Compiled.as_text()`. XLA's own cost analysis counts the body of a loop once, however
long the loop is; here every instruction has the number of times that it runs.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator

import numpy as np

_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<dims>[\d,]*)\](?:\{(?P<layout>[^}]*)\})?")
_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%(?P<name>[^ ]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r" +(?P<root>ROOT )?%(?P<name>[^ ]+) = (?P<rest>.*)$")
_OPCODE = re.compile(r"(?<= )(?P<opcode>[a-z][\w-]*)\(")
# The tables of source lines at the top of the text: names of files, lines in them, and stack frames.
_FILE = re.compile(r'(\d+) "([^"]*)"$')
_LOCATION = re.compile(r"(\d+) \{file_name_id=(\d+) function_name_id=\d+ line=(\d+)")
_FRAME = re.compile(r"(\d+) \{file_location_id=(\d+) parent_frame_id=(\d+)\}")
_CALLED = re.compile(
    r"\b(?:calls|body|condition|branch_computations|true_computation|false_computation)="
    r"\{?(%[^ },]+(?:, %[^ },]+)*)"
)


@dataclasses.dataclass(frozen=True)
class Array:
    """The type of a value.

    Attributes:
      dtype: for example "bf16".
      in_hbm: whether it is in the chip's main memory, not in a scratch memory of the core.
    """

    dtype: str
    shape: tuple[int, ...]
    in_hbm: bool = True

    @property
    def bytes(self) -> int:
        """Bytes without the padding of the layout."""
        size = _BYTES.get(self.dtype) if self.dtype in _BYTES else int(re.sub(r"^\D+(\d+).*", r"\1", self.dtype)) / 8
        return int(np.prod(self.shape, dtype=np.int64) * size)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
      name: name without the %.
      opcode: for example "fusion" or "all-reduce".
      arrays: types of its results; several for a tuple.
      operands: names of its operands.
      attributes: the rest of its line.
      is_root: whether its value is the value of the computation.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that it runs, without those that it applies to each element."""
        groups = _CALLED.findall(self.attributes)
        return tuple(name.removeprefix("%") for group in groups for name in group.split(", "))

    def attribute(self, name: str) -> str:
        """Return the value of `name=...` up to the next comma or space; empty without one."""
        match = re.search(rf"\b{name}=([^, ]+)", self.attributes)
        return match[1] if match else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    """A list of instructions with unique names.

    Attributes:
      name: name without the %.
      instructions: {name: instruction}, in the order in which they run.
    """

    name: str
    instructions: dict[str, Instruction]

    @property
    def root(self) -> Instruction:
        return next(instruction for instruction in reversed(self.instructions.values()) if instruction.is_root)

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        """{number: parameter}."""
        return {
            int(instruction.attributes.partition(")")[0]): instruction
            for instruction in self.instructions.values()
            if instruction.opcode == "parameter"
        }

    @functools.cached_property
    def uses(self) -> dict[str, list[Instruction]]:
        """{name of a value: instructions that have it as an operand}."""
        uses = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for name in instruction.operands:
                uses[name].append(instruction)
        return uses


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
      computations: {name: computation}.
      entry: name of the computation that the program starts with.
      frames: {stack frame: ((file, line), the frame that called it)}; the outermost one has no caller, 0.
    """

    computations: dict[str, Computation]
    entry: str
    frames: dict[int, tuple[tuple[str, int], int]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def runs(self) -> dict[str, int]:
        """{computation: how often it runs}; loops of unknown length count as one iteration."""
        runs = {name: 0 for name in self.computations}

        def run(name: str, times: int) -> None:
            runs[name] += times
            for instruction in self.computations[name].instructions.values():
                trips = (self.trip_count(instruction) or 1) if instruction.opcode == "while" else 1
                for called in instruction.called:
                    run(called, times * trips)

        run(self.entry, 1)
        return runs

    @functools.cached_property
    def fused(self) -> frozenset[str]:
        """Names of the computations of fusions: their intermediate values never reach memory."""
        return frozenset(
            called
            for computation in self.computations.values()
            for instruction in computation.instructions.values()
            if instruction.opcode == "fusion"
            for called in instruction.called
        )

    def __iter__(self) -> Iterator[tuple[Computation, Instruction, int]]:
        """Yield (computation, instruction, how often it runs) of all instructions that run."""
        for name, times in self.runs.items():
            if times:
                for instruction in self.computations[name].instructions.values():
                    yield self.computations[name], instruction, times

    def lines(self, instruction: Instruction) -> Iterator[tuple[str, int]]:
        """Yield (file, line) of the calls that an instruction comes from, the innermost first."""
        frame = int(instruction.attribute("stack_frame_id").rstrip("}") or 0)
        while frame in self.frames:
            line, frame = self.frames[frame]
            yield line

    @property
    def loops_of_unknown_length(self) -> int:
        """Number of loops whose instructions are counted once."""
        return sum(instruction.opcode == "while" and self.trip_count(instruction) is None for _, instruction, _ in self)

    @property
    def arrays(self) -> set[tuple[str, tuple[int, ...]]]:
        """(dtype, shape) of every value that reaches memory."""
        return {
            (array.dtype, array.shape)
            for computation, instruction, _ in self
            if computation.name not in self.fused
            for array in instruction.arrays
        }

    def trip_count(self, loop: Instruction) -> int | None:
        """Return how often a `while` runs its body: the compiler's own note, or the only constant of its condition."""
        if note := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes):
            return int(note[1])
        condition = self.computations[loop.attribute("condition").removeprefix("%")]
        constants = [
            int(constant.attributes.partition(")")[0])
            for constant in condition.instructions.values()
            if constant.opcode == "constant" and constant.arrays[0].dtype in ("s32", "u32", "s64", "u64")
        ]
        counts_up = any("direction=LT" in one.attributes for one in condition.instructions.values())
        return constants[0] if len(constants) == 1 and counts_up else None


def parse(text: str) -> Module:
    """Parse the text of a compiled program."""
    computations: dict[str, Computation] = {}
    entry = ""
    instructions: dict[str, Instruction] = {}
    for line in text.splitlines():
        if matched := _INSTRUCTION.match(line):
            instruction = _instruction(matched["name"], matched["rest"], bool(matched["root"]))
            instructions[instruction.name] = instruction
        elif matched := _COMPUTATION.match(line):
            instructions = {}
            computations[matched["name"]] = Computation(matched["name"], instructions)
            entry = matched["name"] if matched["entry"] else entry
    return Module(computations, entry, _frames(text.partition("\n%")[0].splitlines()))


def _frames(head: list[str]) -> dict[int, tuple[tuple[str, int], int]]:
    """Return `Module.frames` from the lines before the first computation."""
    names = head[head.index("FileNames") + 1 : head.index("FunctionNames")] if "FileNames" in head else []
    files = {matched[1]: matched[2] for line in names if (matched := _FILE.match(line))}
    places = {matched[1]: (files[matched[2]], int(matched[3])) for line in head if (matched := _LOCATION.match(line))}
    # XLA prints the number of the caller plus one.
    return {
        int(matched[1]): (places[matched[2]], int(matched[3]) - 1) for line in head if (matched := _FRAME.match(line))
    }


def _instruction(name: str, rest: str, is_root: bool) -> Instruction:
    opcode = _OPCODE.search(rest)
    arrays = tuple(
        Array(
            match["dtype"],
            tuple(int(size) for size in match["dims"].split(",") if size),
            not re.search(r"S\(\d+\)", match["layout"] or ""),
        )
        for match in _ARRAY.finditer(rest[: opcode.start()])
    )
    inside, attributes = _closed(rest[opcode.end() :])
    is_constant = opcode["opcode"] == "constant"
    operands = () if is_constant else tuple(re.findall(r"%([^ ,)]+)", inside))
    attributes = rest[opcode.end() :] if is_constant or opcode["opcode"] == "parameter" else attributes
    return Instruction(name, opcode["opcode"], arrays, operands, attributes, is_root)


def _closed(text: str) -> tuple[str, str]:
    """Split at the parenthesis that closes one before the text."""
    depth = 1
    for parenthesis in re.finditer(r"[()]", text):
        depth += 1 if parenthesis[0] == "(" else -1
        if not depth:
            return text[: parenthesis.start()], text[parenthesis.end() :]
    return text, ""
