"""Forecast a training step on absent TPUs from its compiled program: memory, FLOPs, collectives, shortest time.

`search` looks for the fastest settings of a stage on given chips: strategy, rematerialization, micro-batches.
"""

import dataclasses
import math
import re
import time
import warnings
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import Mesh

from bertjax.config.config import Config
from bertjax.data.pipeline import filled_up
from bertjax.forecast import hlo, roofline, work
from bertjax.forecast.collectives import Collective, collectives
from bertjax.forecast.roofline import Floor
from bertjax.forecast.topologies import Topology, libtpu_version, usable_memory
from bertjax.models.config import REMAT_POLICIES
from bertjax.models.kernels import implementation_at
from bertjax.models.vocabulary import count_parameters
from bertjax.runtime.errors import RunFailed
from bertjax.training.loss import count_micro_batches
from bertjax.training.setup import Setup, compile_chunk, make_setups, shapes_of_batches, shapes_of_frozen
from bertjax.training.stage_flops import of_stage

_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
# The formula may exceed the executed FLOPs slightly: the compiler removes dead products from small models, such as the
# gradient of an unused hidden state.
_ROUNDING = 0.02
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_STRATEGIES = ("gathered", "replicated", "fsdp")


@dataclasses.dataclass(frozen=True)
class Memory:
    """HBM use on one device, in bytes.

    Attributes:
      usable: limit that the compiler sets for a program.
      needed: peak use. If the program does not fit, the part that the compiler reports.
      arguments: state and batch, which are in memory when a step starts.
      temporaries: peak of activations, gradients and gathered weights.
      program: instruction memory.
      table: compiler report for a program that does not fit; empty if it fits.
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
        """Free bytes; negative if the program does not fit."""
        return self.usable - self.needed


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A training step as it was compiled.

    Attributes:
      topology: target chips.
      stage: index into `stages`.
      task: task name, if there are several.
      steps: steps in the stage.
      steps_per_call: steps per dispatch.
      seq_len: T.
      batch: B, rows in the global batch.
      mesh: {axis: devices along it}.
      strategy: weight sharding, see `bertjax.training.parallel.strategy`.
      remat: rematerialization policy.
      unroll: whether the layers are unrolled.
      attention: attention implementation, see `bertjax.models.kernel_choice`.
      micro_batches: micro-batches per device.
      micro_tokens: configured limit on the tokens in a micro-batch; 0 for no limit.
      parameters: model parameters, without vocabulary padding.
      model_flops: FLOPs per step over all devices, by formula: one full example per row, no recomputation.
    """

    topology: Topology
    stage: int
    task: str
    steps: int
    steps_per_call: int
    seq_len: int
    batch: int
    mesh: dict[str, int]
    strategy: str
    remat: str
    unroll: bool
    attention: str
    micro_batches: int
    micro_tokens: int
    parameters: int
    model_flops: float

    @property
    def ideal_seconds(self) -> float:
        """Seconds that `model_flops` take at peak FLOP/s."""
        return self.model_flops / (self.topology.chips * self.topology.chip.flops)


@dataclasses.dataclass(frozen=True)
class Counts:
    """Work of a compiled step, counted in its program.

    Attributes:
      executed_flops: matrix-product FLOPs per step over all devices.
      collectives: collectives that one device runs in a dispatch.
      floor: lower bound on the step time.
      unknown_loops: loops with unknown trip count; their bodies are counted once.
    """

    executed_flops: float
    collectives: tuple[Collective, ...]
    floor: Floor
    unknown_loops: int


@dataclasses.dataclass(frozen=True)
class Forecast:
    """Forecast of one step; nothing in it was measured.

    Attributes:
      step: what was compiled.
      memory: HBM use on one device.
      counts: work of the compiled program; None if the step does not fit, because nothing is compiled.
      compile_seconds: compile time on this machine.
      libtpu: compiler version.
    """

    step: CompiledStep
    memory: Memory
    counts: Counts | None
    compile_seconds: float
    libtpu: str

    @property
    def most_mfu(self) -> float | None:
        """Largest MFU that the floor allows; None if the step does not fit or was not counted completely.

        Raises:
          AssertionError: it is above 1, so the formula counts operations that the program does not execute.
        """
        counts, step = self.counts, self.step
        if counts is None or counts.unknown_loops:
            return None
        most = step.ideal_seconds / counts.floor.seconds
        if most > 1.0 + _ROUNDING:
            raise AssertionError(
                f"the floor of stage {step.stage} allows an MFU of {most:.3f}, above 1: the model's FLOPs "
                f"({step.model_flops:.4g}) or the executed ones ({counts.executed_flops:.4g}) are wrong; "
                "please report it"
            )
        return most


def forecast_step(setup: Setup, topology: Topology, stage: int = 0, task: str = "") -> Forecast:
    """Compile the training step from the shapes of its arguments, and derive its forecast.

    Args:
      setup: that of the stage, on the devices of the topology.
      topology: target chips.
      stage: index into `stages`.
      task: a task that the stage trains; the first task by default.

    Raises:
      RunFailed: the compiler fails for a reason other than memory.
    """
    config, layout, encoder = setup.config, setup.layout, setup.encoder
    at, runtime, task = config.stages[stage], config.runtime, task or config.task_name
    rows = filled_up(at.batch, layout.shards) // layout.shards
    steps = min(runtime.steps_per_call, at.steps)
    # Shapes, dtypes and shardings are enough to compile, so no parameter is ever allocated.
    arguments = (setup.shapes, shapes_of_frozen(setup, task), shapes_of_batches(setup, task, stage, steps))
    usable = usable_memory(layout.mesh.devices.flat[0])
    started = time.monotonic()
    traced = compile_chunk(setup, task, stage).trace(*arguments)
    lowered = traced.lower()
    try:
        with warnings.catch_warnings():
            # JAX's compilation cache stores programs for absent chips, but cannot load them.
            warnings.filterwarnings("ignore", message="Error reading persistent compilation cache entry")
            compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if _OUT_OF_MEMORY not in str(error):
            raise RunFailed(f"the compiler for {topology} fails: {str(error).splitlines()[0]}") from error
        compiled, memory = None, _memory_of_failure(str(error), usable, _bytes_per_device(arguments))
    else:
        memory = _memory(compiled.memory_analysis(), usable)
    seconds = time.monotonic() - started
    step = CompiledStep(
        topology=topology,
        stage=stage,
        task=task if len(config.tasks) > 1 else "",
        steps=at.steps,
        steps_per_call=steps,
        seq_len=at.seq_len,
        batch=at.batch,
        mesh=dict(layout.mesh.shape),
        strategy=layout.strategy,
        remat=encoder.execution.remat,
        unroll=encoder.execution.unroll,
        attention=implementation_at(encoder.execution, at.seq_len),
        micro_batches=count_micro_batches(rows, at.seq_len, runtime.micro_tokens),
        micro_tokens=runtime.micro_tokens,
        parameters=count_parameters(setup.shapes["params"], encoder),
        model_flops=of_stage(setup, task, stage).executed(arguments[-1]) / steps,
    )
    counts = None if compiled is None else _counts(compiled, work.kernel_flops(traced.jaxpr.jaxpr), step, layout.mesh)
    return Forecast(step, memory, counts, seconds, libtpu_version())


def _counts(compiled: jax.stages.Compiled, in_kernels: float, step: CompiledStep, mesh: Mesh) -> Counts:
    module = hlo.parse(compiled.as_text())
    all_collectives = collectives(module, tuple(mesh.devices.flat))
    # HLO shows a kernel as one opaque call; its FLOPs come from the traced jaxpr, its bytes from the call's operands.
    flops = work.matrix_flops(module) + in_kernels
    moved, steps = work.hbm_bytes(module), step.steps_per_call
    # The compiled text has one program per device (SPMD), so per-device counts are multiplied by the mesh size.
    return Counts(
        executed_flops=flops * mesh.size / steps,
        collectives=tuple(all_collectives),
        floor=roofline.floor(step.topology.chip, flops, moved, all_collectives, steps),
        unknown_loops=module.loops_of_unknown_length,
    )


def _memory(stats: Any, usable: int) -> Memory:
    # The state is donated, so its output reuses (aliases) the input buffers and must not be counted twice.
    needed = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    needed += stats.temp_size_in_bytes + stats.generated_code_size_in_bytes
    return Memory(
        usable=usable,
        needed=needed,
        arguments=stats.argument_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        program=stats.generated_code_size_in_bytes,
    )


def _memory_of_failure(message: str, usable: int, arguments: int) -> Memory:
    """Parse the memory of a program that does not fit; the compiler reports the total or only the temporaries."""
    # There are two kinds of messages: one names only the temporaries, the other the total.
    temporaries = 0
    if size := re.search(r"temporaries \(([\d.]+)([KMGT]?)\)", message):
        temporaries = _bytes_of(size)
        needed = arguments + temporaries
    else:
        size = re.search(r"Used ([\d.]+)([KMGT]?) of", message)
        needed = _bytes_of(size) if size else usable
    return Memory(usable, needed, arguments, temporaries, table=message.strip())


def _bytes_of(size: re.Match) -> int:
    return int(float(size[1]) * _UNITS[size[2]])


def _bytes_per_device(tree: Any) -> int:
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def search(config: Config, topology: Topology, stage: int) -> Iterator[Forecast]:
    """Compile the variants of a stage one by one and yield their forecasts.

    For each strategy and remat policy, the batch is split into more micro-batches until a step fits. The search skips
    `full` if `dots` fits without micro-batches, because `full` could only be slower. It never skips `none`: reading
    activations back from HBM may be slower than recomputing them. Of a mixture, the forecast of a variant is that of
    the task with the largest temporaries: the variant fits if all tasks of the stage do.
    """
    devices = topology.devices()
    # On a single device all strategies compile to the same program.
    for strategy in _STRATEGIES if len(devices) > 1 else _STRATEGIES[:1]:
        for remat in REMAT_POLICIES:
            tried = []
            for forecast in _until_it_fits(_with_runtime(config, strategy, remat), topology, devices, stage):
                tried.append(forecast)
                yield forecast
            if remat == "dots" and len(tried) == 1 and tried[0].memory.fits:
                break


def _until_it_fits(config: Config, topology: Topology, devices: tuple, stage: int) -> Iterator[Forecast]:
    at, micro_tokens = config.stages[stage], 0
    while True:
        runtime = dataclasses.replace(config.runtime, micro_tokens=micro_tokens)
        setup = make_setups(dataclasses.replace(config, runtime=runtime), config.expected_vocab_size, devices)[stage]
        of_tasks = [forecast_step(setup, topology, stage, task) for task in at.among(config.tasks)]
        forecast = max(of_tasks, key=lambda one: (not one.memory.fits, one.memory.temporaries))
        yield forecast
        # Stop at one row per micro-batch: a single row cannot be split.
        rows = filled_up(at.batch, setup.layout.shards) // setup.layout.shards
        if forecast.memory.fits or forecast.step.micro_batches == rows:
            return
        parts = forecast.step.micro_batches * _further_parts(forecast.memory)
        micro_tokens = max(1, rows // parts) * at.seq_len


def _further_parts(memory: Memory) -> int:
    """Return the factor by which to split further: a power of two that shrinks the temporaries enough, at least 2."""
    room = memory.usable - memory.arguments
    return 2 ** max(1, math.ceil(math.log2(memory.temporaries / room))) if 0 < room < memory.temporaries else 2


def _with_runtime(config: Config, strategy: str, remat: str) -> Config:
    mesh = config.runtime.mesh
    if strategy == "replicated":
        mesh = dataclasses.replace(mesh, data=0, fsdp=1)
    return dataclasses.replace(
        config, runtime=dataclasses.replace(config.runtime, strategy=strategy, remat=remat, mesh=mesh)
    )


def best(forecasts: list[Forecast]) -> Forecast | None:
    """Return the fitting forecast with the lowest floor, or None; ties go to the lowest total resource use."""

    def cost(forecast: Forecast) -> tuple[float, float]:
        floor = forecast.counts.floor
        return floor.seconds, sum(dataclasses.astuple(floor))

    return min((one for one in forecasts if one.counts), key=cost, default=None)
