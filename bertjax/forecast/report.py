"""Format forecasts as text and JSON."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bertjax.forecast import calibration
from bertjax.forecast.collectives import Collective, table
from bertjax.forecast.forecast import Forecast
from bertjax.forecast.traffic import Traffic

_GIB = 1 << 30
# Number of source lines in the traffic table.
_LINES = 10


def as_text(forecast: Forecast) -> str:
    """Return the report on one forecast."""
    at, memory = forecast, forecast.memory
    mesh = " x ".join(f"{axis}={size}" for axis, size in at.mesh.items())
    parts = f"{at.micro_batches} micro-batch" + ("es" if at.micro_batches > 1 else "")
    of_task = f"{at.task}: " if at.task else ""
    lines = [
        f"FORECAST for {at.topology} ({at.topology.chips} chips) by libtpu {at.libtpu}; nothing ran on a TPU",
        f"stage {at.stage}      {of_task}{at.steps:,} steps of {at.batch:,} rows x {at.seq_len} tokens, "
        f"{at.strategy} over {mesh}, remat {at.remat}, {parts}",
        f"parameters   {at.parameters:,}",
        f"fits         {_fits(forecast)}",
        f"compiled in  {at.compile_seconds:.0f} s",
    ]
    if not memory.fits:
        return "\n".join([*lines, memory.table, _remedy(forecast)])
    lines.append(
        f"FLOPs        model {at.model_flops:.4g} a step, executed {at.executed_flops:.4g} "
        f"({at.executed_flops / at.model_flops:.3f} times)"
    )
    if at.unknown_loops:
        lines.append(f"             {at.unknown_loops} loops of unknown length were counted once")
    if at.unknown_kernels:
        lines.append(f"             {at.unknown_kernels} calls of kernels were not counted")
    floor, most_mfu = at.floor, at.most_mfu
    # Some chips have no published speed of the vector unit: a 0 would look like a measurement.
    known = [field.name for field in dataclasses.fields(floor) if field.name != "vector" or at.topology.chip.vector]
    busy = [f"{name} {_milliseconds(getattr(floor, name))}" for name in known]
    lines += [
        f"floor        {_milliseconds(floor.seconds)} a step, bound by {floor.description}",
        f"             ({', '.join(busy)})",
        f"             {_milliseconds(floor.seconds_without_overlap)} if only one resource works at a time",
        f"             the model's own FLOPs at the chips' bfloat16 peak take {_milliseconds(at.ideal_seconds)}"
        + (f": an MFU of at most {most_mfu:.0%}" if most_mfu else ""),
        f"             if as efficient as {calibration.SOURCE}: {_milliseconds(at.calibrated_seconds)} (forecast: "
        f"{calibration.factor(at.attention):.3g} times the floor)",
        "collectives  of one device, a step" + ("" if at.collectives else ": none"),
        *_collective_lines(at.collectives, at.steps_per_call),
    ]
    lines += _traffic_lines(at.traffic)
    # A scan over layers writes and reads its carry and its stacked residuals in HBM, which unrolling can avoid.
    if floor.binds == "memory" and not at.unroll:
        lines.append("try          --config.runtime.unroll=True, which may move fewer bytes, and compiles longer")
    return "\n".join(lines)


def one_line(forecast: Forecast) -> str:
    """Summarize one forecast in a search by the settings that the search varies."""
    at = forecast
    floor = f"floor {_milliseconds(at.floor.seconds)}, bound by {at.floor.description}" if at.floor else "does not fit"
    used = f"{gibibytes(at.memory.needed)} of {gibibytes(at.memory.usable)} GiB"
    return f"{at.strategy}, remat {at.remat}, {at.micro_batches} micro-batches: {used}, {floor}"


def flags(forecast: Forecast) -> list[str]:
    """Return the `bertjax train` flags that reproduce a forecast's settings."""
    settings = {
        "strategy": forecast.strategy,
        "remat": forecast.remat,
        "micro_tokens": forecast.micro_tokens,
        "mesh.data": 0,  # all remaining devices, whatever the configuration sets
        "mesh.fsdp": forecast.mesh["fsdp"],
    }
    return [f"--config.runtime.{name}={value}" for name, value in settings.items()]


def as_dict(forecast: Forecast) -> dict[str, Any]:
    """Return a forecast as JSON values; bytes, seconds and FLOPs are per step."""
    plain = dataclasses.asdict(forecast)
    plain["topology"] = {"name": str(forecast.topology), "chips": forecast.topology.chips}
    plain["topology"]["chip"] = dataclasses.asdict(forecast.topology.chip)
    plain["memory"] |= {"fits": forecast.memory.fits, "free": forecast.memory.free}
    steps = forecast.steps_per_call
    plain["collectives"] = [
        dataclasses.asdict(row) | {"bytes": row.bytes / steps, "runs": row.runs / steps}
        for row in table(forecast.collectives)
    ]
    if floor := forecast.floor:
        plain["floor"] |= {"seconds": floor.seconds, "seconds_without_overlap": floor.seconds_without_overlap}
        plain["floor"] |= {"binds": floor.binds, "calibrated_seconds": forecast.calibrated_seconds}
    return {"predicted": True} | plain


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
    devices = forecast.mesh["data"] * forecast.mesh["fsdp"]
    remedies = []
    rows = -(-forecast.batch // devices) // forecast.micro_batches
    if rows > 1:
        remedies.append(f"--config.runtime.micro_tokens={rows // 2 * forecast.seq_len}")
    if forecast.remat != "full":
        remedies.append(f"--config.runtime.remat={'dots' if forecast.remat == 'none' else 'full'}")
    if forecast.strategy != "fsdp":
        remedies.append(f"--config.runtime.strategy={'gathered' if forecast.strategy == 'replicated' else 'fsdp'}")
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


def _traffic_lines(traffic: Sequence[Traffic]) -> list[str]:
    total = sum(one.bytes for one in traffic)
    lines = [
        f"             {one.bytes / total:6.1%} {one.bytes / 1e6:>12,.3f} MB, "
        f"{'backward' if one.is_backward else 'forward'}, {one.line}"
        for one in traffic[:_LINES]
    ]
    return [f"memory       {total / 1e6:,.3f} MB of one device, a step; the lines that move most", *lines]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
