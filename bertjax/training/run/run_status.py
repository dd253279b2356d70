"""How a run is doing, read from the files in its workdir. Neither JAX nor Orbax is imported: monitors call it often."""

import contextlib
import dataclasses
import json
import math
import time
from typing import Any

from etils import epath

from bertjax import storage
from bertjax.errors import UserError
from bertjax.training.run.workdir import Workdir, is_finished, parts_of, read_json, read_jsonl

# States in which a live process changes the workdir again and again.
_FINAL = ("finished", "stopped", "failed")
# A live run writes a sign of life every ten seconds.
_SILENT_SECONDS = 300.0
# Steps may be longer than that.
_LATE = 3.0
# The end of a file that grows with the run: a few hundred lines.
_TAIL_BYTES = 256 * 1024
_RECORDS_OF_RATE = 50
_WARNINGS = 3


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """The status of a run. What is not known is None.

    Attributes:
      workdir: path or URL.
      state: `finished`, `failed`, `stopped`, `stalled` (a run that was alive and gives no sign of life), or what a live
        process does: `starting`, `restoring`, `compiling`, `training`, `evaluating`, `saving` or `exporting`.
      silent_seconds: seconds since the last sign of life.
      step: number of steps done.
      steps: number of all steps.
      seconds_per_step: over the last 50 logged steps, evaluations and saves included.
      eta_seconds: seconds until the last step at this rate; 0 if the run is finished.
      checkpoint: step of the newest checkpoint.
      checkpoint_age_seconds: seconds since it was completed.
      losses: the newest of training and of each held-out set, as in `metrics.jsonl`; None if one was not finite.
      goodput: share of the wall time of all starts that went into steps that are in a checkpoint.
      starts: number of starts.
      last_start: time of the last start.
      exit_code: exit code of the last start; None if it lives, or ended without a last sign, as after `kill -9`.
      failure: why the last start failed or was stopped; None if it was not, or was asked to stop.
      warnings: the newest spikes, losses that are not finite, the last failure at a step, and damaged checkpoints.
    """

    workdir: str
    state: str
    silent_seconds: float | None
    step: int
    steps: int | None
    seconds_per_step: float | None
    eta_seconds: float | None
    checkpoint: int | None
    checkpoint_age_seconds: float | None
    losses: dict[str, float | None]
    goodput: float | None
    starts: int
    last_start: str | None
    exit_code: int | None
    failure: str | None
    warnings: tuple[str, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether the run is finished, or a live process works on it."""
        return self.state not in ("stalled", "stopped", "failed")


def read_status(path: epath.PathLike) -> RunStatus:
    """Return the status of the run in a workdir.

    Raises:
      UserError: there is no run, or a file is damaged.
      StorageError: a file cannot be read.
    """
    workdir = Workdir.at(path)
    with storage.storage_errors(workdir.root):
        return _read(workdir)


def _read(workdir: Workdir) -> RunStatus:
    if not workdir.root.exists():
        raise UserError(f"{workdir.root} does not exist; name the workdir of a run")
    heartbeat = _optional_json(workdir.heartbeat, "step", "time", "state")
    if heartbeat is None and not workdir.config.exists():
        raise UserError(f"{workdir.root} has no config.json; name the workdir of a run")
    records = _tail(workdir.metrics)
    steps = _steps(workdir, heartbeat)
    step = heartbeat["step"] if heartbeat else records[-1]["step"] if records else 0
    saved = workdir.saved_steps()
    step = max(step, saved[-1] if saved else 0)
    rate = _seconds_per_step(records)
    state, silent = _state(workdir, heartbeat, steps, rate)
    remaining = None if steps is None or rate is None else rate * max(steps - step, 0)
    starts = read_jsonl(workdir.starts)
    return RunStatus(
        workdir=str(workdir.root),
        state=state,
        silent_seconds=silent,
        step=step,
        steps=steps,
        seconds_per_step=rate,
        eta_seconds=0.0 if state == "finished" else remaining,
        checkpoint=saved[-1] if saved else None,
        checkpoint_age_seconds=_age_of_checkpoint(workdir, saved[-1]) if saved else None,
        losses=_losses(records),
        goodput=_goodput(workdir, saved, state),
        starts=len(starts),
        last_start=starts[-1].get("time") if starts else None,
        exit_code=heartbeat.get("exit_code") if heartbeat and state in _FINAL else None,
        failure=heartbeat.get("failure") if heartbeat and state in _FINAL else None,
        warnings=_warnings(workdir, records),
    )


def _optional_json(path: epath.Path, *keys: str) -> dict[str, Any] | None:
    try:
        return read_json(path, *keys)
    except FileNotFoundError:
        return None


def _steps(workdir: Workdir, heartbeat: dict | None) -> int | None:
    """Return the number of steps; the configuration has it as soon as the data are prepared."""
    if heartbeat and heartbeat.get("steps"):
        return heartbeat["steps"]
    record = _optional_json(workdir.config, "config")
    return sum(stage["steps"] for stage in record["config"]["stages"]) if record else None


def _state(
    workdir: Workdir, heartbeat: dict | None, steps: int | None, seconds_per_step: float | None
) -> tuple[str, float | None]:
    """Return the state, and the seconds since the last sign of life."""
    if heartbeat is None:  # a run of an earlier bertjax
        if is_finished(_optional_json(workdir.summary, "steps") or {}, steps):
            return "finished", None
        changed = [_modified(path) for path in (workdir.metrics, workdir.elapsed, workdir.starts) if path.exists()]
        silent = _since(max(changed)) if changed else None
        return ("training" if silent is not None and silent < _SILENT_SECONDS else "stopped"), silent
    silent = _since(heartbeat["time"])
    # While a run trains, each dispatch of steps is a sign of life. In other states one comes every second.
    longest = _LATE * (seconds_per_step or 0.0) if heartbeat["state"] == "training" else 0.0
    if heartbeat["state"] not in _FINAL and silent > max(longest, _SILENT_SECONDS):
        return "stalled", silent
    return heartbeat["state"], silent


def _since(moment: float) -> float:
    """Return the seconds since a moment; the clock of the machine that noted it may be ahead of this one."""
    return max(time.time() - moment, 0.0)


def _modified(path: epath.Path) -> float:
    return float(path.stat().mtime)


def _age_of_checkpoint(workdir: Workdir, step: int) -> float | None:
    """Return the seconds since Orbax completed a checkpoint; a folder of an object store has no time of its own."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # it may be deleted now
        metadata = json.loads((workdir.checkpoints / str(step) / "_CHECKPOINT_METADATA").read_text())
        return _since(metadata["commit_timestamp_nsecs"] / 1e9)
    return None


def _tail(path: epath.Path) -> list[dict]:
    """Return the last records of a file of JSON lines, without a line that is being written now.

    A run that was copied from an object store to a disk has segments that are older than the file, and one that was
    copied the other way has a file that is older than its segments.
    """
    parts = parts_of(path)
    parts = parts[:1] + parts[1:][-2:]
    lines = [line for part in parts for line in _last_lines(part)]
    records = []
    for line in lines:
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise ValueError("it is not the record of a step")
        except ValueError as error:
            raise UserError(f"{path} has a damaged line ({error}); restore the file") from error
        records.append(record)
    return sorted(records, key=lambda record: record["step"]) if len(parts) > 1 else records


def _last_lines(path: epath.Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(size - _TAIL_BYTES, 0)
            file.seek(start)
            return file.read().split(b"\n")[1 if start else 0 : -1]
    except FileNotFoundError:
        return []


def _seconds_per_step(records: list[dict]) -> float | None:
    timed = [record for record in records if "seconds" in record][-_RECORDS_OF_RATE:]
    if len(timed) < 2 or timed[-1]["step"] <= timed[0]["step"]:
        return None
    return (timed[-1]["seconds"] - timed[0]["seconds"]) / (timed[-1]["step"] - timed[0]["step"])


def _losses(records: list[dict]) -> dict[str, float | None]:
    newest = {}
    for record in records:
        newest |= {name: value for name, value in record.items() if name.endswith("_loss")}
    return newest


def _goodput(workdir: Workdir, saved: list[int], state: str) -> float | None:
    # A file may be missing, or be written now.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        if state == "finished":
            return json.loads(workdir.summary.read_text())["accounts"]["goodput"]
        totals = json.loads((workdir.checkpoints / str(saved[-1]) / "meta" / "metadata").read_text())["totals"]
        other = sum(totals[f"{kind}_seconds"] for kind in ("data_wait", "compile", "checkpoint", "evaluation"))
        wall = math.fsum(json.loads(workdir.elapsed.read_text()))
        return max(totals["seconds"] - other, 0.0) / wall if wall else None
    return None


def _warnings(workdir: Workdir, records: list[dict]) -> tuple[str, ...]:
    dated = [
        (spike["step"], f"{spike['name']} of step {spike['step']} is {_number(spike['loss'])}, far above its mean")
        for spike in _tail(workdir.spikes)
    ]
    for record in records:
        names = [name for name, value in record.items() if name.endswith("_loss") and value is None]
        if names:
            dated.append((record["step"], f"{', '.join(names)} of step {record['step']} is not finite"))
    # The reason why the last start ended is worth more than older spikes.
    dated += [
        (math.inf, f"a start failed at step {each['step']}: {each['reason']}") for each in _tail(workdir.failures)[-1:]
    ]
    newest = [text for _, text in sorted(dated)[-_WARNINGS:]]
    damaged = sorted(path.name for path in workdir.root.iterdir() if path.name.startswith("checkpoints.damaged-"))
    return (*newest, *(f"{name} is a damaged checkpoint, which is not used" for name in damaged[-_WARNINGS:]))


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3f}"
