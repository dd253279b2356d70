"""Format forecasts as text and JSON."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bertjax.forecast.collectives import Collective, table
from bertjax.forecast.forecast import Forecast

_GIB = 1 << 30


def as_text(forecast: Forecast) -> str:
    """Return the report on one forecast."""
    at, memory, counts = forecast.step, forecast.memory, forecast.counts
    mesh = " x ".join(f"{axis}={size}" for axis, size in at.mesh.items())
    parts = f"{at.micro_batches} micro-batch" + ("es" if at.micro_batches > 1 else "")
    of_task = f"{at.task}: " if at.task else ""
    lines = [
        f"FORECAST for {at.topology} ({at.topology.chips} chips) by libtpu {forecast.libtpu}; nothing ran on a TPU",
        f"stage {at.stage}      {of_task}{at.steps:,} steps of {at.batch:,} rows x {at.seq_len} tokens, "
        f"{at.strategy} over {mesh}, remat {at.remat}, {parts}",
        f"parameters   {at.parameters:,}",
        f"fits         {_fits(forecast)}",
        f"compiled in  {forecast.compile_seconds:.0f} s",
    ]
    if counts is None:
        return "\n".join([*lines, memory.table, _remedy(forecast)])
    lines.append(
        f"FLOPs        model {at.model_flops:.4g} a step, executed {counts.executed_flops:.4g} "
        f"({counts.executed_flops / at.model_flops:.3f} times)"
    )
    if counts.unknown_loops:
        lines.append(f"             {counts.unknown_loops} loops of unknown length were counted once")
    floor, most_mfu = counts.floor, forecast.most_mfu
    busy = [f"{name} {_milliseconds(seconds)}" for name, seconds in dataclasses.asdict(floor).items()]
    lines += [
        f"floor        {_milliseconds(floor.seconds)} a step, bound by {floor.description}",
        f"             ({', '.join(busy)})",
        f"             {_milliseconds(floor.seconds_without_overlap)} if only one resource works at a time",
        f"             the model's own FLOPs at the chips' bfloat16 peak take {_milliseconds(at.ideal_seconds)}"
        + (f": an MFU of at most {most_mfu:.0%}" if most_mfu else ""),
        "collectives  of one device, a step" + ("" if counts.collectives else ": none"),
        *_collective_lines(counts.collectives, at.steps_per_call),
    ]
    # A scan over layers writes and reads its carry and its stacked residuals in HBM, which unrolling can avoid.
    if floor.binds == "memory" and not at.unroll:
        lines.append("try          --config.runtime.unroll=True, which may move fewer bytes, and compiles longer")
    return "\n".join(lines)


def one_line(forecast: Forecast) -> str:
    """Summarize one forecast in a search by the settings that the search varies."""
    at, memory, floor = forecast.step, forecast.memory, forecast.counts and forecast.counts.floor
    floor = f"floor {_milliseconds(floor.seconds)}, bound by {floor.description}" if floor else "does not fit"
    used = f"{gibibytes(memory.needed)} of {gibibytes(memory.usable)} GiB"
    return f"{at.strategy}, remat {at.remat}, {at.micro_batches} micro-batches: {used}, {floor}"


def flags(forecast: Forecast) -> list[str]:
    """Return the `bertjax train` flags that reproduce a forecast's settings."""
    step = forecast.step
    settings = {
        "strategy": step.strategy,
        "remat": step.remat,
        "micro_tokens": step.micro_tokens,
        "mesh.data": 0,  # all remaining devices, whatever the configuration sets
        "mesh.fsdp": step.mesh["fsdp"],
    }
    return [f"--config.runtime.{name}={value}" for name, value in settings.items()]


def as_dict(forecast: Forecast) -> dict[str, Any]:
    """Return a forecast as JSON values; bytes, seconds and FLOPs are per step."""
    step, memory, counts = forecast.step, forecast.memory, forecast.counts
    chips = {"chips": step.topology.chips, "chip": dataclasses.asdict(step.topology.chip)}
    plain = {
        "predicted": True,
        **dataclasses.asdict(step),
        "topology": {"name": str(step.topology), **chips},
        "memory": dataclasses.asdict(memory) | {"fits": memory.fits, "free": memory.free},
        "compile_seconds": forecast.compile_seconds,
        "libtpu": forecast.libtpu,
    }
    if counts is None:
        return plain
    floor, steps = counts.floor, step.steps_per_call
    bounds = {"seconds": floor.seconds, "seconds_without_overlap": floor.seconds_without_overlap, "binds": floor.binds}
    per_step = [
        dataclasses.asdict(row) | {"bytes": row.bytes / steps, "runs": row.runs / steps}
        for row in table(counts.collectives)
    ]
    return plain | {**dataclasses.asdict(counts), "collectives": per_step, "floor": dataclasses.asdict(floor) | bounds}


def gibibytes(count: float) -> str:
    """Format a byte count in GiB, with two decimals."""
    return f"{count / _GIB:.2f}"


def _fits(forecast: Forecast) -> str:
    memory = forecast.memory
    verdict = f"yes, {gibibytes(memory.free)} GiB free" if memory.fits else "NO"
    return (
        f"{verdict}: {gibibytes(memory.needed)} of {gibibytes(memory.usable)} GiB a device (state and batch "
        f"{gibibytes(memory.arguments)}, temporaries {gibibytes(memory.temporaries)}, program "
        f"{gibibytes(memory.program)})"
    )


def _remedy(forecast: Forecast) -> str:
    step = forecast.step
    devices = step.mesh["data"] * step.mesh["fsdp"]
    remedies = []
    rows = -(-step.batch // devices) // step.micro_batches
    if rows > 1:
        remedies.append(f"--config.runtime.micro_tokens={rows // 2 * step.seq_len}")
    if step.remat != "full":
        remedies.append(f"--config.runtime.remat={'dots' if step.remat == 'none' else 'full'}")
    if step.strategy != "fsdp":
        remedies.append(f"--config.runtime.strategy={'gathered' if step.strategy == 'replicated' else 'fsdp'}")
    remedies.append("a smaller batch or more chips")
    return f"try          {', '.join(remedies)}; --search tries them for you"


def _collective_lines(collectives: Sequence[Collective], steps: int) -> list[str]:
    return [
        f"             {row.kind:<18} {row.dtype:<5} {row.bytes / steps / 1e6:>12,.3f} MB in {row.runs / steps:>6g}, "
        f"{'asynchronous' if row.asynchronous else 'synchronous'}"
        + (", between slices" if row.between_slices else "")
        + (f", over {row.links:.0%} of the links" if row.links < 1 else "")
        for row in table(list(collectives))
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
