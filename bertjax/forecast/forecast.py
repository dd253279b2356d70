"""What the compiler says of a training step on a TPU, before there is one."""

import dataclasses
import math
import re
import time
import warnings
from typing import Any

import jax

from bertjax.errors import RunFailed
from bertjax.forecast import hlo, roofline, work
from bertjax.forecast.collectives import Collective, collectives
from bertjax.forecast.pallas import calls, flops_of_call, kernel_flops
from bertjax.forecast.roofline import Floor
from bertjax.forecast.topologies import Topology, libtpu_version, usable_memory
from bertjax.models.vocabulary import count_parameters
from bertjax.training.program import Program
from bertjax.training.step import micro_batches

_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of HBM of one device.

    Attributes:
      usable: what the compiler gives a program.
      needed: by the program, at its peak; where it does not fit, as much of it as the compiler tells.
      arguments: state and batch, which are there when a step begins.
      temporaries: activations, gradients and gathered weights, at their peak.
      program: the instructions themselves.
      table: what the compiler says of a program that needs more than there is; empty where it fits.
    """

    usable: int
    needed: int
    arguments: int = 0
    temporaries: int = 0
    program: int = 0
    table: str = ""

    @property
    def fits(self) -> bool:
        return not self.table

    @property
    def free(self) -> int:
        """Negative where it does not fit."""
        return self.usable - self.needed


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A compiled step; all figures are predicted, none was measured.

    Attributes:
      topology: on which chips.
      stage: index of the stage.
      task: that has its turn, where there are several.
      steps: of the stage.
      seq_len: T.
      batch: B, rows of the global batch.
      mesh: devices along each axis.
      strategy: where weights rest.
      remat: what the backward pass recomputes.
      micro_batches: parts of a device's share of the batch.
      micro_tokens: the most tokens of a part, as configured; 0 for no limit.
      parameters: of the model, the padding of the vocabulary not counted.
      model_flops: of a step on all devices, by formula: rows full of one example each, and nothing done twice.
      memory: of one device.
      compile_seconds: on this machine.
      executed_flops: of the matrix products of a step on all devices; this and all below is 0, empty or None where the
        step does not fit.
      xla_flops: as XLA counts them, a dispatch: with elementwise operations, without kernels, a loop's body once.
      collectives: of one device, a dispatch of `steps_per_call` steps.
      steps_per_call: steps in one dispatch.
      floor: the shortest step.
      unknown_loops: loops whose length the program does not tell: what they do is counted once.
      unknown_kernels: calls of kernels whose operations are not counted.
      libtpu: version of the compiler.
    """

    topology: Topology
    stage: int
    task: str
    steps: int
    seq_len: int
    batch: int
    mesh: dict[str, int]
    strategy: str
    remat: str
    micro_batches: int
    micro_tokens: int
    parameters: int
    model_flops: float
    memory: Memory
    compile_seconds: float
    executed_flops: float = 0.0
    xla_flops: float = 0.0
    collectives: tuple[Collective, ...] = ()
    steps_per_call: int = 1
    floor: Floor | None = None
    unknown_loops: int = 0
    unknown_kernels: int = 0
    libtpu: str = ""

    @property
    def ideal_seconds(self) -> float:
        """A step at the chips' peak, with the model's own operations alone."""
        return self.model_flops / (self.topology.chips * self.topology.chip.flops)


def predict(program: Program, topology: Topology, stage: int = 0, task: str = "") -> Prediction:
    """Compiles the chunk of steps that training runs, from the shapes of its arguments alone.

    Args:
      program: on the devices of the topology.
      topology: of these chips.
      stage: index into the stages of the run.
      task: that has its turn; the first by default.

    Raises:
      RunFailed: the compiler fails for another reason than memory.
    """
    at, runtime = program.config.stages[stage], program.config.runtime
    steps = min(runtime.steps_per_call, at.steps)
    of_task = program.tasks[task or program.config.task_name]
    arguments = (program.abstract_state, of_task.abstract_frozen, of_task.abstract_batches(at, steps))
    usable = usable_memory(program.mesh.devices.flat[0])
    started = time.monotonic()
    traced = of_task.chunk.trace(*arguments)
    lowered = traced.lower()
    try:
        with warnings.catch_warnings():
            # JAX's cache takes programs for chips that are not there, but cannot give them back.
            warnings.filterwarnings("ignore", message="Error reading persistent compilation cache entry")
            compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if _OUT_OF_MEMORY not in str(error):
            raise RunFailed(f"the compiler for {topology} fails: {str(error).splitlines()[0]}") from error
        compiled, memory = None, _too_much(str(error), usable, _bytes_a_device(arguments))
    else:
        memory = _memory(compiled.memory_analysis(), usable)
    prediction = Prediction(
        topology=topology,
        stage=stage,
        task=of_task.name if len(program.tasks) > 1 else "",
        steps=at.steps,
        seq_len=at.seq_len,
        batch=at.batch,
        mesh=dict(program.mesh.shape),
        strategy=program.layout.strategy,
        remat=program.encoder.execution.remat,
        micro_batches=micro_batches(at.batch // program.layout.shards, at.seq_len, runtime.micro_tokens),
        micro_tokens=runtime.micro_tokens,
        parameters=count_parameters(program.abstract_state["params"], program.encoder),
        model_flops=of_task.flops.executed(arguments[-1]) / steps,
        memory=memory,
        compile_seconds=time.monotonic() - started,
        steps_per_call=steps,
        libtpu=libtpu_version(),
    )
    if compiled is None:
        return prediction
    prediction = dataclasses.replace(prediction, xla_flops=compiled.cost_analysis()["flops"] * program.mesh.size)
    return _with_work(prediction, hlo.parse(compiled.as_text()), kernel_flops(traced.jaxpr.jaxpr), program.mesh.size)


def _with_work(prediction: Prediction, module: hlo.Module, kernels: dict[str, float], devices: int) -> Prediction:
    found = collectives(module, devices)
    in_kernels = [(flops_of_call(call, kernels), runs) for call, runs in calls(module)]
    flops = work.matrix_flops(module) + sum(flops * runs for flops, runs in in_kernels if flops is not None)
    moved = work.hbm_bytes(module)
    steps = prediction.steps_per_call
    return dataclasses.replace(
        prediction,
        executed_flops=flops * devices / steps,
        collectives=tuple(found),
        floor=roofline.floor(prediction.topology.chip, flops, moved, found, steps),
        unknown_loops=module.loops_of_unknown_length,
        unknown_kernels=sum(flops is None for flops, _ in in_kernels),
    )


def _memory(stats: Any, usable: int) -> Memory:
    needed = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    needed += stats.temp_size_in_bytes + stats.generated_code_size_in_bytes
    return Memory(
        usable=usable,
        needed=needed,
        arguments=stats.argument_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        program=stats.generated_code_size_in_bytes,
    )


def _too_much(message: str, usable: int, arguments: int) -> Memory:
    """Of what the compiler says: either how much all of it is, or how much the temporaries are."""
    temporaries = 0
    if said := re.search(r"temporaries \(([\d.]+)([KMGT]?)\)", message):
        temporaries = _number(said)
        needed = arguments + temporaries
    else:
        said = re.search(r"Used ([\d.]+)([KMGT]?) of", message)
        needed = _number(said) if said else usable
    return Memory(usable, needed, arguments, temporaries, table=message.strip())


def _number(said: re.Match) -> int:
    return int(float(said[1]) * _UNITS[said[2]])


def _bytes_a_device(tree: Any) -> int:
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
