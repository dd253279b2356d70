"""A parser for optimized HLO text: computations, instructions, and how often each instruction runs.

It reads `jax.stages.Compiled.as_text()`. XLA's own cost analysis counts a loop body once, however many iterations it
has. Here every instruction comes with its number of executions.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator

import numpy as np

# Other dtypes have their width in bits in their names: bf16, s32, f8e4m3fn.
_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "token": 0, "opaque": 0}
# bf16[8,128]{1,0:T(8,128)S(1)}: dtype, shape, and a layout with order of axes, tiling and memory space.
_ARRAY = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<dims>[\d,]*)\](?:\{(?P<layout>[^}]*)\})?")
# `ENTRY %main (p: f32[8]) -> f32[8] {` starts a computation; `  ROOT %c = f32[8]{0} add(%a, %b)` is an instruction.
_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%(?P<name>[^ ]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r" +(?P<root>ROOT )?%(?P<name>[^ ]+) = (?P<rest>.*)$")
_OPCODE = re.compile(r"(?<= )(?P<opcode>[a-z][\w-]*)\(")
# `to_apply` is left out on purpose: it runs once per element and is counted with the reduction itself.
_CALLED = re.compile(
    r"\b(?:calls|body|condition|branch_computations|true_computation|false_computation)="
    r"\{?(%[^ },]+(?:, %[^ },]+)*)"
)


@dataclasses.dataclass(frozen=True)
class Array:
    """The type of a value.

    Attributes:
      dtype: for example "bf16".
      in_hbm: whether it is in HBM, rather than in on-core scratch memory such as VMEM.
    """

    dtype: str
    shape: tuple[int, ...]
    in_hbm: bool = True

    @property
    def bytes(self) -> int:
        """Size without layout padding."""
        size = _BYTES.get(self.dtype) if self.dtype in _BYTES else int(re.sub(r"^\D+(\d+).*", r"\1", self.dtype)) / 8
        return int(np.prod(self.shape, dtype=np.int64) * size)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An HLO instruction.

    Attributes:
      name: name without the %.
      opcode: for example "fusion" or "all-reduce".
      arrays: result types; several for a tuple.
      operands: operand names.
      attributes: rest of the line, after the operands.
      is_root: whether the computation returns its value.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that it runs, excluding per-element ones such as the `to_apply` of a reduction."""
        groups = _CALLED.findall(self.attributes)
        return tuple(name.removeprefix("%") for group in groups for name in group.split(", "))

    def attribute(self, name: str) -> str:
        """Return the value after `name=`, up to the next comma or space; empty if the attribute is absent."""
        match = re.search(rf"\b{name}=([^, ]+)", self.attributes)
        return match[1] if match else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    """An HLO computation: instructions with unique names.

    Attributes:
      name: name without the %.
      instructions: {name: instruction}, in execution order.
    """

    name: str
    instructions: dict[str, Instruction]

    @property
    def root(self) -> Instruction:
        return next(instruction for instruction in reversed(self.instructions.values()) if instruction.is_root)

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        """{parameter number: instruction}."""
        return {
            int(instruction.attributes.partition(")")[0]): instruction
            for instruction in self.instructions.values()
            if instruction.opcode == "parameter"
        }

    @functools.cached_property
    def uses(self) -> dict[str, list[Instruction]]:
        """{value name: instructions that use it as an operand}."""
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
      entry: name of the entry computation.
    """

    computations: dict[str, Computation]
    entry: str

    @functools.cached_property
    def runs(self) -> dict[str, int]:
        """{computation: number of executions}; a loop with unknown trip count counts as one iteration."""
        runs = {name: 0 for name in self.computations}

        def run(name: str, times: int) -> None:
            runs[name] += times
            # Nested loops multiply: a body in a loop of 12 layers within 4 micro-batches runs 48 times.
            for instruction in self.computations[name].instructions.values():
                trips = (self.trip_count(instruction) or 1) if instruction.opcode == "while" else 1
                for called in instruction.called:
                    run(called, times * trips)

        run(self.entry, 1)
        return runs

    @functools.cached_property
    def fused(self) -> frozenset[str]:
        """Names of fused computations. Their intermediate values never reach memory."""
        return frozenset(
            called
            for computation in self.computations.values()
            for instruction in computation.instructions.values()
            if instruction.opcode == "fusion"
            for called in instruction.called
        )

    def __iter__(self) -> Iterator[tuple[Computation, Instruction, int]]:
        """Yield (computation, instruction, number of executions) for every reachable instruction."""
        for name, times in self.runs.items():
            if times:
                for instruction in self.computations[name].instructions.values():
                    yield self.computations[name], instruction, times

    @property
    def loops_of_unknown_length(self) -> int:
        """Number of loops with unknown trip count. Their instructions are counted once."""
        return sum(instruction.opcode == "while" and self.trip_count(instruction) is None for _, instruction, _ in self)

    def trip_count(self, loop: Instruction) -> int | None:
        """Return the trip count of a `while`, from the compiler's annotation or its condition; None if unknown."""
        if note := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes):
            return int(note[1])
        # Loops from `lax.scan` and `fori_loop` count from 0 with `i < n`, so the only integer constant in the condition
        # is the trip count.
        condition = self.computations[loop.attribute("condition").removeprefix("%")]
        constants = [
            int(constant.attributes.partition(")")[0])
            for constant in condition.instructions.values()
            if constant.opcode == "constant" and constant.arrays[0].dtype in ("s32", "u32", "s64", "u64")
        ]
        counts_up = any("direction=LT" in one.attributes for one in condition.instructions.values())
        return constants[0] if len(constants) == 1 and counts_up else None


def parse(text: str) -> Module:
    """Parse optimized HLO text."""
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
    return Module(computations, entry)


def _instruction(name: str, rest: str, is_root: bool) -> Instruction:
    opcode = _OPCODE.search(rest)
    arrays = tuple(
        Array(
            match["dtype"],
            tuple(int(size) for size in match["dims"].split(",") if size),
            # S(n) in a layout is a memory space; HBM is the default one and is not printed.
            not re.search(r"S\(\d+\)", match["layout"] or ""),
        )
        for match in _ARRAY.finditer(rest[: opcode.start()])
    )
    inside, attributes = _closed(rest[opcode.end() :])
    # The parentheses of a constant hold its value, and of a parameter its number: both are attributes here.
    is_constant = opcode["opcode"] == "constant"
    operands = () if is_constant else tuple(re.findall(r"%([^ ,)]+)", inside))
    attributes = rest[opcode.end() :] if is_constant or opcode["opcode"] == "parameter" else attributes
    return Instruction(name, opcode["opcode"], arrays, operands, attributes, is_root)


def _closed(text: str) -> tuple[str, str]:
    """Split at the parenthesis that closes the one just before `text`."""
    depth = 1
    for parenthesis in re.finditer(r"[()]", text):
        depth += 1 if parenthesis[0] == "(" else -1
        if not depth:
            return text[: parenthesis.start()], text[parenthesis.end() :]
    return text, ""
