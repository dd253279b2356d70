"""Work in a compiled program: matrix-product FLOPs and HBM bytes, with every loop iteration counted.

The rules follow XLA's cost analysis: a fusion reads its operands and writes its results once. If it only slices an
operand, it reads only the slices.
"""

import itertools
import math
import re
from typing import Any

import numpy as np

from bertjax.forecast.hlo import Array, Computation, Instruction, Module
from bertjax.training.stage_flops import jaxprs_in, matrix_products

# Opcodes that move no bytes themselves: bookkeeping, and control flow, whose bodies are counted separately.
_FREE = frozenset(
    "after-all bitcast call conditional constant get-tuple-element opt-barrier parameter partition-id recv replica-id "
    "send tuple while".split()
)
_SLICES = ("dynamic-slice", "gather", "slice")
# Within a fusion, these only reorder elements.
_RELABELS = ("bitcast", "copy", "reshape")


def matrix_flops(module: Module) -> float:
    """Return the matrix-product FLOPs on one device. XLA for TPU turns most matrix products into convolutions."""
    flops_of = {"convolution": _convolution_flops, "dot": _dot_flops}
    return float(
        sum(
            runs * flops_of[instruction.opcode](computation, instruction)
            for computation, instruction, runs in module
            if instruction.opcode in flops_of
        )
    )


def hbm_bytes(module: Module) -> float:
    """Return the HBM reads and writes of one device, in bytes."""
    return float(
        sum(
            runs * _moved(module, computation, instruction)
            for computation, instruction, runs in module
            if computation.name not in module.fused
        )
    )


def _moved(module: Module, computation: Computation, instruction: Instruction) -> int:
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith("-done") or 'custom_call_target="AllocateBuffer"' in instruction.attributes:
        return 0
    operands = [computation.instructions[name] for name in instruction.operands]
    if opcode == "fusion":
        return _moved_by_fusion(module, instruction, operands)
    if opcode == "copy-start":  # its results are the copy, the operand and a context
        return _in_hbm((instruction.arrays[0], *operands[0].arrays))
    if opcode == "slice-start":  # its results are the operand, the slice and a context
        part = instruction.arrays[1]
        return part.bytes * (part.in_hbm + operands[0].arrays[0].in_hbm)
    if opcode in _SLICES:  # reads only the part that it returns
        part = instruction.arrays[0]
        return part.bytes * (part.in_hbm + operands[0].arrays[0].in_hbm)
    if opcode == "dynamic-update-slice":  # in place: reads the update and writes it; the rest of the operand stays
        return 2 * _in_hbm(operands[1].arrays)
    return _in_hbm((*instruction.arrays, *itertools.chain(*(operand.arrays for operand in operands))))


def _moved_by_fusion(module: Module, fusion: Instruction, operands: list[Instruction]) -> int:
    inside = module.computations[fusion.called[0]]
    # A fusion in the chain of an asynchronous collective hands buffers on to the next link without touching them.
    passed_on = _passed_on(fusion) if any("chain_id" in one.attributes for one in inside.instructions.values()) else {}
    total = 0
    for number, parameter in inside.parameters.items():
        whole = _in_hbm(operands[number].arrays)
        if whole and number not in passed_on.values():
            total += min(whole, _sliced(module, inside, parameter) or whole)
    results = _results(inside)
    if len(results) != len(fusion.arrays):  # tuples in a tuple
        return total + _in_hbm(fusion.arrays)
    for index, (array, result) in enumerate(zip(fusion.arrays, results, strict=True)):
        if index not in passed_on and array.in_hbm:
            total += _written(module, inside, array, result)
    return total


def _sliced(module: Module, inside: Computation, parameter: Instruction) -> int | None:
    """Return the bytes that a fusion reads from an operand that it only slices; None if it reads the full operand."""
    # Follow the operand through the fusion; any use that is not a slice, a reordering or an update reads all of it.
    read, names = 0, [parameter.name]
    while names:
        name = names.pop()
        for use in inside.uses[name]:
            if use.opcode in _RELABELS or "output_to_operand_aliasing={{}: (0, {})}" in use.attributes:
                names.append(use.name)
            elif use.opcode in _SLICES and use.operands[0] == name:
                read += sum(array.bytes for array in use.arrays)
            elif use.opcode == "dynamic-update-slice" and use.operands[0] == name:
                read += 1  # the rest of the operand is not touched
            elif use.opcode == "fusion":
                nested = module.computations[use.called[0]]
                parts = [_sliced(module, nested, nested.parameters[n]) for n, x in enumerate(use.operands) if x == name]
                if None in parts:
                    return None
                read += sum(parts)
            else:
                return None
    return read


def _results(inside: Computation) -> list[Instruction]:
    root = inside.root
    return [inside.instructions[name] for name in root.operands] if root.opcode == "tuple" else [root]


def _written(module: Module, inside: Computation, array: Array, result: Instruction) -> int:
    """Return the bytes that a fusion writes for one result; for an in-place update, the size of the update."""
    while result.opcode in _RELABELS:
        result = inside.instructions[result.operands[0]]
    if result.opcode == "dynamic-update-slice":
        return sum(update.bytes for update in inside.instructions[result.operands[1]].arrays)
    if result.opcode == "fusion" and len(result.arrays) == 1:
        nested = module.computations[result.called[0]]
        return _written(module, nested, array, nested.root)
    return array.bytes


def _passed_on(fusion: Instruction) -> dict[int, int]:
    """Return {result index: index of the operand that it aliases}."""
    text = fusion.attributes.partition("output_to_operand_aliasing=")[2]
    return {int(result): int(operand) for result, operand in re.findall(r"\{(\d+)\}: \((\d+), \{\}\)", text)}


def _in_hbm(arrays: tuple[Array, ...]) -> int:
    return sum(array.bytes for array in arrays if array.in_hbm)


def _dot_flops(computation: Computation, dot: Instruction) -> int:
    left = computation.instructions[dot.operands[0]].arrays[0].shape
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", dot.attributes)
    sizes = [left[int(axis)] for axis in contracted[1].split(",") if axis] if contracted else []
    return 2 * math.prod(dot.arrays[0].shape) * math.prod(sizes)


def _convolution_flops(computation: Computation, convolution: Instruction) -> int:
    """Return the FLOPs of a convolution, two per multiply-add. Padding and dilation holes cost nothing."""
    left, right = (computation.instructions[name].arrays[0].shape for name in convolution.operands)
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", convolution.attributes)
    left, right, out = (
        dict(zip(label, shape, strict=True))
        for label, shape in zip(labels.groups(), (left, right, convolution.arrays[0].shape), strict=True)
    )
    groups = int(convolution.attribute("batch_group_count") or 1)
    window = re.search(r"window=\{([^}]*)\}", convolution.attributes)
    settings = dict(entry.split("=") for entry in window[1].split()) if window else {}
    spatial = sorted(axis for axis in out if axis.isdigit())

    def setting(name: str, axis: int, default: str) -> str:
        return settings[name].split("x")[axis] if name in settings else default

    pairs = 1
    for number, axis in enumerate(spatial):
        low = int(setting("pad", number, "0_0").split("_")[0])
        stride, hole, step = (int(setting(name, number, "1")) for name in ("stride", "lhs_dilate", "rhs_dilate"))
        # Input position for each pair (output position, kernel position); pairs outside of the input are free.
        places = np.add.outer(np.arange(out[axis]) * stride - low, np.arange(right[axis]) * step)
        pairs *= int(np.sum((places % hole == 0) & (places >= 0) & (places <= (left[axis] - 1) * hole)))
    return 2 * pairs * right["i"] * out["f"] * (left["b"] // groups)


def kernel_flops(jaxpr: Any) -> float:
    """Return the matrix-product FLOPs of the Pallas kernels in a traced function, on one device.

    A compiled program has only the calls of kernels. Each counts as its own jaxpr at every point of its grid.

    Args:
      jaxpr: jaxpr from `jax.stages.Traced`.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            points = math.prod(equation.params["grid_mapping"].grid)
            total += 2.0 * points * matrix_products(equation.params["jaxpr"])
        else:
            repeats = equation.params["length"] if equation.primitive.name == "scan" else 1
            total += repeats * sum(map(kernel_flops, jaxprs_in(equation)))
    return total
