"""Predictions as a person reads them, and as JSON."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from bertjax.config import Config
from bertjax.forecast.collectives import Collective, table
from bertjax.forecast.forecast import Prediction

_GIB = 1 << 30
_SECONDS_A_DAY = 86_400


def as_text(prediction: Prediction) -> str:
    """A block of lines."""
    at, memory = prediction, prediction.memory
    mesh = " x ".join(f"{axis}={size}" for axis, size in at.mesh.items())
    parts = f"{at.micro_batches} micro-batch" + ("es" if at.micro_batches > 1 else "")
    of_task = f"{at.task}: " if at.task else ""
    lines = [
        f"PREDICTED for {at.topology} ({at.topology.chips} chips) by libtpu {at.libtpu}; nothing ran on a TPU",
        f"stage {at.stage}      {of_task}{at.steps:,} steps of {at.batch:,} rows x {at.seq_len} tokens, "
        f"{at.strategy} over {mesh}, remat {at.remat}, {parts}",
        f"parameters   {at.parameters:,}",
        f"fits         {_fits(prediction)}",
        f"compiled in  {at.compile_seconds:.0f} s",
    ]
    if not memory.fits:
        return "\n".join([*lines, memory.table, _remedy(prediction)])
    lines.append(
        f"FLOPs        model {at.model_flops:.4g} a step, executed {at.executed_flops:.4g} "
        f"({at.executed_flops / at.model_flops:.3f} times)"
    )
    if at.unknown_loops:
        lines.append(f"             {at.unknown_loops} loops of unknown length were counted once")
    if at.unknown_kernels:
        lines.append(f"             {at.unknown_kernels} calls of kernels were not counted")
    floor = at.floor
    busy = [f"{field.name} {_milliseconds(getattr(floor, field.name))}" for field in dataclasses.fields(floor)]
    lines += [
        f"floor        {_milliseconds(floor.seconds)} a step, bound by {floor.binds} ({', '.join(busy)})",
        f"             the model's own FLOPs at the chips' bfloat16 peak take {_milliseconds(at.ideal_seconds)}: "
        f"an MFU of at most {min(1.0, at.ideal_seconds / floor.seconds):.0%}",
        "collectives  of one device, a step" + ("" if at.collectives else ": none"),
    ]
    return "\n".join(lines + _collective_lines(at.collectives, at.steps_per_call))


def one_line(prediction: Prediction) -> str:
    """What distinguishes it among others of a search."""
    at = prediction
    floor = f"floor {_milliseconds(at.floor.seconds)}, bound by {at.floor.binds}" if at.floor else "does not fit"
    used = f"{gibibytes(at.memory.needed)} of {gibibytes(at.memory.usable)} GiB"
    return f"{at.strategy}, remat {at.remat}, {at.micro_batches} micro-batches: {used}, {floor}"


def flags(prediction: Prediction) -> list[str]:
    """What to give `bertjax.train` for it."""
    settings = {
        "strategy": prediction.strategy,
        "remat": prediction.remat,
        "micro_tokens": prediction.micro_tokens,
        "mesh.data": 0,  # all that are left, whatever the configuration says
        "mesh.fsdp": prediction.mesh["fsdp"],
    }
    return [f"--config.runtime.{name}={value}" for name, value in settings.items()]


def projection(predictions: Sequence[Prediction], config: Config, corpus_tokens: float, mfu: float) -> str:
    """How often a run reads a corpus and how long that takes.

    Args:
      predictions: of every distinct shape among the stages, for each of their tasks.
      config: of the run.
      corpus_tokens: tokens of the corpus.
      mfu: model FLOPs utilization, the share of the chips' peak that the model's own FLOPs make use of.
    """
    of_shape = {
        (one.seq_len, one.batch, config.layers_at(one.stage), one.task or config.task_name): one for one in predictions
    }

    def seconds(of_step: Callable[[Prediction], float]) -> float:
        """Of the whole run, its tasks having their shares of the steps."""
        total = 0.0
        for index, stage in enumerate(config.stages):
            shape = (stage.seq_len, stage.batch, config.layers_at(index))
            weights = {task: config.tasks[task].weight for task in stage.among(config.tasks)}
            turns = {task: stage.steps * weight / sum(weights.values()) for task, weight in weights.items()}
            total += sum(steps * of_step(of_shape[*shape, task]) for task, steps in turns.items())
        return total

    tokens = sum(stage.steps * stage.batch * stage.seq_len for stage in config.stages)
    ideal = seconds(lambda one: one.ideal_seconds)
    line = (
        f"whole run    {tokens:.4g} tokens, {tokens / corpus_tokens:.3g} epochs of {corpus_tokens:.4g}; predicted "
        f"{ideal / mfu / _SECONDS_A_DAY:.3g} days at an assumed MFU of {mfu:.0%}"
    )
    if all(one.floor for one in predictions):
        least = seconds(lambda one: one.floor.seconds)
        line += f", {least / _SECONDS_A_DAY:.3g} days at the floor"
        if least > ideal / mfu:
            line += f"; the floor allows an MFU of {ideal / least:.0%} at most"
    return line


def as_dict(prediction: Prediction) -> dict[str, Any]:
    """Plain values; bytes, seconds and FLOPs are those of a step."""
    plain = dataclasses.asdict(prediction)
    plain["topology"] = {"name": str(prediction.topology), "chips": prediction.topology.chips}
    plain["topology"]["chip"] = dataclasses.asdict(prediction.topology.chip)
    plain["memory"] |= {"fits": prediction.memory.fits, "free": prediction.memory.free}
    steps = prediction.steps_per_call
    plain["collectives"] = [
        dataclasses.asdict(row) | {"bytes": row.bytes / steps, "runs": row.runs / steps}
        for row in table(prediction.collectives)
    ]
    if prediction.floor:
        plain["floor"] |= {"seconds": prediction.floor.seconds, "binds": prediction.floor.binds}
    return {"predicted": True} | plain


def gibibytes(count: float) -> str:
    return f"{count / _GIB:.2f}"


def _fits(prediction: Prediction) -> str:
    memory = prediction.memory
    verdict = f"yes, {gibibytes(memory.free)} GiB free" if memory.fits else "NO"
    return (
        f"{verdict}: {gibibytes(memory.needed)} of {gibibytes(memory.usable)} GiB a device (state and batch "
        f"{gibibytes(memory.arguments)}, temporaries {gibibytes(memory.temporaries)}, program "
        f"{gibibytes(memory.program)})"
    )


def _remedy(prediction: Prediction) -> str:
    devices = prediction.mesh["data"] * prediction.mesh["fsdp"]
    remedies = []
    rows = prediction.batch // devices // prediction.micro_batches
    if rows > 1:
        remedies.append(f"--config.runtime.micro_tokens={rows // 2 * prediction.seq_len}")
    if prediction.remat != "full":
        remedies.append(f"--config.runtime.remat={'dots' if prediction.remat == 'none' else 'full'}")
    if prediction.strategy != "fsdp":
        remedies.append(f"--config.runtime.strategy={'gathered' if prediction.strategy == 'replicated' else 'fsdp'}")
    remedies.append("a smaller batch or more chips")
    return f"try          {', '.join(remedies)}; --search tries them for you"


def _collective_lines(found: Sequence[Collective], steps: int) -> list[str]:
    return [
        f"             {row.kind:<18} {row.dtype:<5} {row.bytes / steps / 1e6:>12,.3f} MB in {row.runs / steps:>6g}, "
        f"{'asynchronous' if row.asynchronous else 'synchronous'}" + (", between slices" if row.between_slices else "")
        for row in table(list(found))
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
