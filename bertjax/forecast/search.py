"""Finds how to carry a stage out on given chips: strategy, recomputation, and parts of the batch."""

import dataclasses
import math
from collections.abc import Iterator

from bertjax.config import Config
from bertjax.forecast.forecast import Memory, Prediction, predict
from bertjax.forecast.topologies import Topology
from bertjax.models.config import REMAT_POLICIES
from bertjax.training.parallel.sharding import check_batch
from bertjax.training.program import Program

_STRATEGIES = ("gathered", "replicated", "fsdp")


def search(config: Config, topology: Topology, stage: int) -> Iterator[Prediction]:
    """Compiles one variant of a stage after the other.

    For each strategy and each remat, the batch is parted until a step fits. `full` is left out where `dots` fits with
    a whole batch: it could only take longer. `none` is not: what it does not compute anew, it reads back from memory,
    which may take longer. On a single device all strategies are the same.

    Raises:
      UserError: the devices do not divide the batch.
    """
    devices = topology.devices()
    for strategy in _STRATEGIES if len(devices) > 1 else _STRATEGIES[:1]:
        for remat in REMAT_POLICIES:
            tried = []
            for prediction in _until_it_fits(_with_runtime(config, strategy, remat), topology, devices, stage):
                tried.append(prediction)
                yield prediction
            if remat == "dots" and len(tried) == 1 and tried[0].memory.fits:
                break


def _until_it_fits(config: Config, topology: Topology, devices: tuple, stage: int) -> Iterator[Prediction]:
    at, micro_tokens = config.stages[stage], 0
    while True:
        runtime = dataclasses.replace(config.runtime, micro_tokens=micro_tokens)
        program = Program(dataclasses.replace(config, runtime=runtime), config.expected_vocab_size, devices)
        check_batch(f"stages.{stage}.batch", at.batch, program.mesh)
        prediction = predict(program, topology, stage)
        yield prediction
        rows = at.batch // program.layout.shards
        if prediction.memory.fits or prediction.micro_batches == rows:
            return
        parts = prediction.micro_batches * _further_parts(prediction.memory)
        micro_tokens = max(1, rows // parts) * at.seq_len


def _further_parts(memory: Memory) -> int:
    """A power of two: at least 2, and as many as the temporaries must shrink by."""
    room = memory.usable - memory.arguments
    return 2 ** max(1, math.ceil(math.log2(memory.temporaries / room))) if 0 < room < memory.temporaries else 2


def _with_runtime(config: Config, strategy: str, remat: str) -> Config:
    mesh = config.runtime.mesh
    if strategy == "replicated":
        mesh = dataclasses.replace(mesh, data=0, fsdp=1)
    return dataclasses.replace(
        config, runtime=dataclasses.replace(config.runtime, strategy=strategy, remat=remat, mesh=mesh)
    )


def best(predictions: list[Prediction]) -> Prediction | None:
    """The one that fits with the lowest floor; among equals that whose resources are busy least. None if none fits."""
    fitting = [one for one in predictions if one.memory.fits]
    return min(fitting, key=lambda one: (one.floor.seconds, sum(dataclasses.astuple(one.floor))), default=None)
