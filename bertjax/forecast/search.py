"""Search for the fastest settings of a stage on given chips: strategy, rematerialization, micro-batches."""

import dataclasses
import math
from collections.abc import Iterator

from bertjax.config.config import Config
from bertjax.data.pipeline import filled_up
from bertjax.forecast.forecast import Forecast, Memory, forecast_step
from bertjax.forecast.topologies import Topology
from bertjax.models.config import REMAT_POLICIES
from bertjax.training.program import Program

_STRATEGIES = ("gathered", "replicated", "fsdp")


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
        program = Program(dataclasses.replace(config, runtime=runtime), config.expected_vocab_size, devices)
        of_tasks = [forecast_step(program.at(stage), topology, stage, task) for task in at.among(config.tasks)]
        forecast = max(of_tasks, key=lambda one: (not one.memory.fits, one.memory.temporaries))
        yield forecast
        # Stop at one row per micro-batch: a single row cannot be split.
        rows = filled_up(at.batch, program.layout.shards) // program.layout.shards
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
