"""Read a run's status from its workdir. Monitors call it often, so it imports neither JAX nor Orbax."""

import contextlib
import dataclasses
import json
import math
import time
from typing import Any

from etils import epath

from bertjax.runtime import storage
from bertjax.runtime.errors import UserError
from bertjax.training.run.workdir import Workdir, is_finished, parts_of, read_json, read_jsonl

# States without a live process: nothing in the workdir changes anymore.
_FINAL = ("finished", "stopped", "failed")
# A run counts as stalled after this silence; a live one writes its heartbeat every ten seconds.
_SILENT_SECONDS = 300.0
# While training, allow at least this many times the usual step time: long steps have no heartbeat in between.
_LATE = 3.0
# Read only the end of growing files: a few hundred lines.
_TAIL_BYTES = 256 * 1024
_RECORDS_OF_RATE = 50
_WARNINGS = 3


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """Run status. Unknown values are None.

    Attributes:
      workdir: path or URL.
      state: `finished`, `failed`, `stopped`, `stalled` (no more signs of life), or the activity of a live process:
        `starting`, `restoring`, `compiling`, `training`, `evaluating`, `saving` or `exporting`.
      silent_seconds: seconds since the last sign of life.
      step: steps done.
      steps: steps in the whole run.
      seconds_per_step: mean over the last 50 logged steps, evaluations and saves included.
      eta_seconds: estimated seconds until the last step; 0 if the run is finished.
      checkpoint: step of the newest complete checkpoint.
      checkpoint_age_seconds: seconds since it was completed.
      losses: newest training and held-out losses, named as in `metrics.jsonl`; None for a non-finite one.
      goodput: share of wall time, over all starts, that went into steps that are in a checkpoint.
      starts: number of starts.
      last_start: when the last start began.
      exit_code: exit code of the last start; None if it is alive or died without a last sign, as after `kill -9`.
      failure: why the last start failed or was stopped; None without a failure, or after a request to stop.
      warnings: newest spikes, non-finite losses, the last failure at a step, and damaged checkpoints.
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


def read_status(path: epath.PathLike) -> RunStatus:
    """Return the status of the run in `path`.

    Raises:
      UserError: there is no run, or a file is damaged.
      StorageError: a file cannot be read.
    """
    workdir = Workdir.at(path)
    with storage.storage_errors(workdir.root):
        return _read(workdir)


def _read(workdir: Workdir) -> RunStatus:
    if not workdir.root.is_dir():
        raise UserError(f"{workdir.root} is not a folder; name the workdir of a run")
    heartbeat = _optional_json(workdir.heartbeat, "step", "time", "state")
    if heartbeat is None and not workdir.config.exists():
        raise UserError(f"{workdir.root} has no config.json; name the workdir of a run")
    records = _tail(workdir.metrics)
    steps = _steps(workdir, heartbeat)
    step = heartbeat["step"] if heartbeat else records[-1]["step"] if records else 0
    saved = workdir.saved_steps()
    step = max(step, saved[-1] if saved else 0)  # a killed run may not have reported its last steps
    rate = _seconds_per_step(records)
    state, silent = _state(workdir, heartbeat, steps, rate)
    remaining = None if steps is None or rate is None else rate * max(steps - step, 0)
    starts = read_jsonl(workdir.starts)
    ended = heartbeat if heartbeat and state in _FINAL else {}
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
        losses={name: value for record in records for name, value in record.items() if name.endswith("_loss")},
        goodput=_goodput(workdir, saved, state),
        starts=len(starts),
        last_start=starts[-1].get("time") if starts else None,
        exit_code=ended.get("exit_code"),
        failure=ended.get("failure"),
        warnings=_warnings(workdir, records),
    )


def _optional_json(path: epath.Path, *keys: str) -> dict[str, Any] | None:
    return read_json(path, *keys) if storage.exists(path) else None


def _steps(workdir: Workdir, heartbeat: dict | None) -> int | None:
    """Return the steps in the run; `config.json` has them as soon as the data are prepared."""
    if heartbeat and heartbeat.get("steps"):
        return heartbeat["steps"]
    record = _optional_json(workdir.config, "config")
    return sum(stage["steps"] for stage in record["config"]["stages"]) if record else None


def _state(
    workdir: Workdir, heartbeat: dict | None, steps: int | None, seconds_per_step: float | None
) -> tuple[str, float | None]:
    """Return the state, and the seconds since the last sign of life."""
    if heartbeat is None:  # the workdir was copied without it: a live run writes it before `config.json`
        summary = _optional_json(workdir.summary, "finished", "steps") or {}
        return ("finished" if is_finished(summary, steps) else "stopped"), None
    silent = _since(heartbeat["time"])
    # While training, only a completed dispatch is a sign of life. In other states there is one every second.
    usual = heartbeat.get("hang_timeout", 0.0) if seconds_per_step is None else _LATE * seconds_per_step
    longest = usual if heartbeat["state"] == "training" else 0.0
    if heartbeat["state"] not in _FINAL and silent > max(longest, _SILENT_SECONDS):
        return "stalled", silent
    return heartbeat["state"], silent


def _since(moment: float) -> float:
    """Return the seconds since a time, at least 0: another machine's clock may be ahead of this one."""
    return max(time.time() - moment, 0.0)


def _age_of_checkpoint(workdir: Workdir, step: int) -> float | None:
    """Return the seconds since Orbax completed a checkpoint, by its metadata: object store folders have no mtime."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # it may be deleted now
        metadata = json.loads((workdir.checkpoints / str(step) / "_CHECKPOINT_METADATA").read_text())
        return _since(metadata["commit_timestamp_nsecs"] / 1e9)
    return None


def _tail(path: epath.Path) -> list[dict]:
    """Return a JSON Lines file's last records, without a line that is being written now.

    A run that was copied from an object store to a disk has segments older than the file. A run that was copied the
    other way has a file older than its segments.
    """
    # The file, if there is one, and the newest two segments, because the newest may have only a few lines.
    parts = parts_of(path)
    parts, records = parts[:1] + parts[1:][-2:], []
    for part in parts:
        with contextlib.suppress(FileNotFoundError), part.open("rb") as file:  # a resumed run cuts its logs
            start = max(file.seek(0, 2) - _TAIL_BYTES, 0)
            file.seek(start)
            records += [_of_step(path, line) for line in file.read().split(b"\n")[1 if start else 0 : -1]]
    return sorted(records, key=lambda record: record["step"]) if len(parts) > 1 else records


def _of_step(path: epath.Path, line: bytes) -> dict:
    try:
        record = json.loads(line)
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            raise ValueError("it is not the record of a step")
        return record
    except ValueError as error:
        raise UserError(f"{path} has a damaged line ({error}); restore the file") from error


def _seconds_per_step(records: list[dict]) -> float | None:
    timed = [record for record in records if "seconds" in record][-_RECORDS_OF_RATE:]
    if len(timed) < 2 or timed[-1]["step"] <= timed[0]["step"]:
        return None
    return (timed[-1]["seconds"] - timed[0]["seconds"]) / (timed[-1]["step"] - timed[0]["step"])


def _goodput(workdir: Workdir, saved: list[int], state: str) -> float | None:
    # Any of the files may be missing or half-written.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        if state == "finished":
            return json.loads(workdir.summary.read_text())["accounts"]["goodput"]
        totals = json.loads((workdir.checkpoints / str(saved[-1]) / "meta" / "metadata").read_text())["hooks"]["totals"]
        other = sum(totals[f"{kind}_seconds"] for kind in ("data_wait", "compile", "checkpoint", "evaluation"))
        wall = math.fsum(json.loads(workdir.elapsed.read_text()))
        return max(totals["seconds"] - other, 0.0) / wall if wall else None
    return None


def _warnings(workdir: Workdir, records: list[dict]) -> tuple[str, ...]:
    dated = []
    for spike in _tail(workdir.spikes):
        loss = "not finite" if spike["loss"] is None else f"{spike['loss']:.3f}"
        dated.append((spike["step"], f"{spike['name']} of step {spike['step']} is {loss}, far above its mean"))
    for record in records:
        names = [name for name, value in record.items() if name.endswith("_loss") and value is None]
        if names:
            dated.append((record["step"], f"{', '.join(names)} of step {record['step']} is not finite"))
    # Sorted after all spikes: the reason for the end of the last start is the most useful warning.
    dated += [
        (math.inf, f"a start failed at step {each['step']}: {each['reason']}") for each in _tail(workdir.failures)[-1:]
    ]
    newest = [text for _, text in sorted(dated)[-_WARNINGS:]]
    damaged = sorted(path.name for path in workdir.root.iterdir() if path.name.startswith("checkpoints.damaged-"))
    return (*newest, *(f"{name} is a damaged checkpoint, which is not used" for name in damaged[-_WARNINGS:]))
