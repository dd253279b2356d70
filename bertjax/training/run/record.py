"""Write and read a run's record (configuration, identity, tokenizer), and read its checkpoints."""

import contextlib
import dataclasses
import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath
from flax.traverse_util import flatten_dict

from bertjax.config import export, private_paths, typed
from bertjax.config.config import Config, from_dict, to_dict
from bertjax.config.export import EARLIER, Export, check_finite, encoder_of, exported, with_encoder
from bertjax.config.typed import differences
from bertjax.data import tokenizer
from bertjax.data.labeled.base import SPLITS, WHERE, Record
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime import storage
from bertjax.runtime.errors import Damaged, Untrusted, UserError, check_format, quoted, reason
from bertjax.training.config import Stage
from bertjax.training.model_params import ModelParams
from bertjax.training.parallel import processes
from bertjax.training.run import versions
from bertjax.training.run.checkpoint import Checkpoints, RestoredCheckpoint
from bertjax.training.run.workdir import (
    Workdir,
    has_finished,
    local_folder,
    read_json,
    read_jsonl,
    write_json,
    write_jsonl,
)
from bertjax.training.stages import encoder_at, stage_at

FORMAT_VERSION = 1
_HELDOUT = "eval/heldout/"
# Flag with a value that may hold a secret, such as a chat token. The record of a start is shared with its report.
_SECRET = "--on-event"
# Parts of an identity that are contents, besides the data: initial weights, frozen parameters, resources.
_CONTENTS = ("init_from", "frozen", "read")
# Stage settings that determine its length, and settings that follow from it: with `warmup_share` or `minutes`, a longer
# run has a longer warm-up or decay.
_LENGTHS = ("steps", "epochs", "flops", "minutes", "min_steps")
_OF_LENGTH = ("optimizer.warmup_steps: ", "optimizer.schedule.")


class OtherData(UserError):
    """A run does not read what another one has read, with which it is compared."""


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """Content of `config.json` in a workdir.

    Attributes:
      config: resolved configuration, for example with `epochs` converted to steps (`bertjax.training.resolve`).
      settings: configuration as the user wrote it.
      identity: everything that determines the result: `Config.identity` of `config`, and data fingerprints.
      vocab_size: number of token ids.
    """

    config: Config
    settings: Config
    identity: dict
    vocab_size: int


def write_record(workdir: Workdir, record: RunRecord, tokenizer: Tokenizer) -> None:
    """Write `config.json` and the tokenizer, unless they are unchanged: other processes may be reading them."""
    content = {
        "format_version": FORMAT_VERSION,
        "config": to_dict(record.config),
        "settings": to_dict(record.settings),
        "identity": record.identity,
        "vocab_size": record.vocab_size,
    }
    if storage.exists(workdir.config):
        if read_json(workdir.config) == json.loads(json.dumps(content)):  # JSON turns tuples into lists
            return
    else:
        # The tokenizer first: the existence of `config.json` marks a complete record.
        with local_folder(workdir.tokenizer) as folder:
            folder.mkdir(exist_ok=True)
            tokenizer.save(folder)
            storage.flush_folder(folder)
    write_json(workdir.config, content)


def read_record(workdir: Workdir, trust_code: bool = False) -> RunRecord:
    """Read `config.json` of a workdir.

    Args:
      workdir: workdir of the run.
      trust_code: whether to import the modules that the run names as `module:Class`.

    Raises:
      UserError: it is damaged or has another format.
    """
    return _record_of(_read(workdir), trust_code)


def shared_record(workdir: Workdir) -> RunRecord | None:
    """Return, in every process, the record that process 0 reads; None if it finds no run.

    A client of NFS may not see yet what another one has written: processes that look by themselves could take one run
    for a new one and for one that resumes.

    Raises:
      UserError: as for `read_record`.
    """
    content = processes.from_writer(lambda: _read(workdir) if storage.exists(workdir.config) else None, "read-record")
    return processes.together(lambda: _record_of(content, trust_code=False) if content else None)


def write_split(workdir: Workdir, task: str, divided: Mapping[str, Sequence[Record]]) -> None:
    """Write the training and held-out records of a task whose labeled file is divided, which stay if it changes."""
    for split, records in divided.items():
        write_jsonl(workdir.split(task, split), map(_content, records))


def has_split(workdir: Workdir, task: str, divided: Mapping[str, Sequence[Record]]) -> bool:
    """Return whether a workdir holds these training and held-out records."""
    return all(
        read_jsonl(workdir.split(task, split)) == list(map(_content, records)) for split, records in divided.items()
    )


def _content(record: Record) -> Record:
    return {name: value for name, value in record.items() if name != WHERE}


def with_split(workdir: Workdir, config: Config) -> Config:
    """Return the configuration of a run with the files of its split in place of a divided one."""
    tasks = dict(config.tasks)
    for name, task in config.tasks.items():
        paths: dict[str, Any] = {split: os.fspath(workdir.split(name, split)) for split in SPLITS}
        if storage.exists(paths["heldout"]):
            tasks[name] = dataclasses.replace(task, examples=dataclasses.replace(task.examples, **paths))
    return dataclasses.replace(config, tasks=tasks)


def has_checkpoint(workdir: Workdir) -> bool:
    """Return, in every process, whether process 0 finds a checkpoint."""
    return processes.from_writer(lambda: bool(Checkpoints(workdir.checkpoints).steps()), "has-checkpoint")


def _record_of(content: dict[str, Any], trust_code: bool) -> RunRecord:
    config, settings = (from_dict(content[half], trust_code) for half in ("config", "settings"))
    return RunRecord(config, settings, content["identity"], content["vocab_size"])


def read_settings(workdir: Workdir) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a workdir's configuration and identity as plain dicts, without importing any classes.

    Raises:
      UserError: it is damaged or has another format.
    """
    record = _read(workdir)
    return record["config"], record["identity"]


def _read(workdir: Workdir) -> dict[str, Any]:
    kinds = {"format_version": int, "config": dict, "settings": dict, "identity": dict, "vocab_size": int}
    record = read_json(workdir.config, *kinds)
    for key, kind in kinds.items():
        if type(record[key]) is not kind:
            problem = f"{key}={quoted(record[key])} is not {'an integer' if kind is int else 'settings by name'}"
            raise UserError(f"{workdir.config} is damaged ({problem}); restore it, or use another --workdir")
    check_format(str(workdir.config), record["format_version"], FORMAT_VERSION)
    return record


def check_identity(workdir: Workdir, record: RunRecord, longer: bool) -> bool:
    """Return True if the workdir holds the run of this record, and False if it is empty.

    Two records belong to the same run if user settings and data are equal. Derived values, such as the steps per epoch,
    are compared too, because another version of bertjax may derive other values.

    Args:
      workdir: workdir of the run.
      record: record of the run that the user starts.
      longer: accept more steps in the last stage.

    Raises:
      UserError: it holds another run; the message lists the differences.
    """
    if not storage.exists(workdir.config):
        return False
    try:
        before = read_record(workdir)
    except Untrusted:  # the old run names a user class that this run does not
        # Compare plain data: do not import that class only for an error message.
        changed = differences(_read(workdir)["identity"], record.identity)
        raise _other_settings(workdir, changed, "use another --workdir, or the old settings") from None
    # `changed` is what the user changed. `resolved` also has values derived from it: with other data or code, the same
    # settings may give other steps.
    changed = _differences(_identity(before, before.settings), _identity(record, record.settings))
    resolved = _differences(_identity(before, before.config), record.identity)
    if not _beside_length(changed, record):  # also true without changes
        further = _beside_length(resolved, record, *_OF_LENGTH)
        steps_before, steps = before.config.stages[-1].steps, record.config.stages[-1].steps
        if changed and steps <= steps_before:
            raise _other_settings(workdir, changed, "a run cannot be shortened: use another --workdir")
        if changed and not longer:
            raise _other_settings(workdir, changed, "add --longer to train it longer, or use another --workdir")
        # Derived values differ although the user changed nothing that explains it.
        if further or (resolved and not changed):
            raise UserError(
                f"workdir {workdir.root} holds a run of the same settings, from which this bertjax derives other "
                f"values ({'; '.join(further or resolved)}); use the version that started it, or another --workdir"
            )
        return True
    raise _other_settings(workdir, changed, "use another --workdir, or the old settings")


def check_reads(other: Workdir, identity: Mapping[str, Any]) -> None:
    """Raise OtherData if a run reads other data, weights or teachers than the run in another workdir."""
    before, now = (
        {part: each.get(part) for part in _CONTENTS} | {"store_fingerprint": each["data"]["store_fingerprint"]}
        for each in (_read(other)["identity"], json.loads(json.dumps(identity)))
    )
    if changed := differences(before, now):
        raise OtherData(
            f"this run does not read what {other.root} has read ({'; '.join(changed)}), so their scores cannot be "
            "compared; restore the data, or use another --workdir"
        )


def check_checkpoint(workdir: Workdir, record: RunRecord, step: int, meta: Mapping[str, Any]) -> None:
    """Raise UserError if the metadata of a checkpoint in a workdir is of another run than the record."""
    saved = dataclasses.replace(record, config=from_dict(meta["config"]), identity=meta["identity"])
    changed = _differences(_identity(saved, saved.config), record.identity)
    if other := _beside_length(changed, record, *_OF_LENGTH):  # a run may have become longer since
        raise UserError(
            f"checkpoint {step} in {workdir.checkpoints} is of another run than {workdir.config} ({'; '.join(other)}); "
            "restore the file that belongs to it, or use another --workdir"
        )


def _beside_length(changed: Sequence[str], record: RunRecord, *also: str) -> list[str]:
    """Return the differences that are not lengths of the last stage, and do not start with one of `also`."""
    last = len(record.config.stages) - 1
    return [line for line in changed if not line.startswith((*(f"stages.{last}.{name}: " for name in _LENGTHS), *also))]


def shared_figures(workdir: Workdir, settings: Config) -> dict[str, Any] | None:
    """Return the content of `summary.json` if the workdir holds a finished run with these settings, else None.

    `runtime` settings may differ, because they do not change the result. A run without a whole export of its last step
    has not finished. Process 0 reads for all.
    """
    return processes.from_writer(lambda: _finished_figures(workdir, settings), "finished-run")


def _finished_figures(workdir: Workdir, settings: Config) -> dict[str, Any] | None:
    if not has_finished(workdir):
        return None
    before, now = ({**part, "runtime": None} for part in (_read(workdir)["settings"], to_dict(settings)))
    if before != json.loads(json.dumps(now)):
        return None
    summary = read_json(workdir.summary, "eval", "baseline")
    exports = [workdir.export, workdir.export_ema] if "eval_ema" in summary else [workdir.export]
    if not all(_is_whole_export(folder, summary["steps"]) for folder in exports):
        return None
    return {name: value for name, value in summary.items() if name != "finished"}


def _is_whole_export(folder: epath.Path, steps: int) -> bool:
    if not storage.is_remote(folder):
        return export.is_whole(Path(folder), steps)
    # The manifest is the last object that is uploaded.
    manifest = folder / export.MANIFEST
    return storage.exists(manifest) and read_json(manifest, "numbers")["numbers"].get("steps") == steps


def _other_settings(workdir: Workdir, changed: list[str], remedy: str) -> UserError:
    return UserError(f"workdir {workdir.root} holds a run with other settings ({'; '.join(changed)}); {remedy}")


def _differences(before: dict, now: dict) -> list[str]:
    """Return the differences, except in `skip_rows`, which is compared with the restored checkpoint instead."""
    return [line for line in differences(before, now) if not line.startswith("skip_rows")]


def changes_beside_seed(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the differences between two identities as `a.b: old -> new`, except for the seed and the seeded plans."""
    halves = ({name: part for name, part in each.items() if name not in ("seed", "plans")} for each in (first, second))
    return differences(*halves)


def _identity(record: RunRecord, settings: Config) -> dict:
    """Return the identity with other settings. Those that are newer than the run have their defaults in it."""
    return record.identity | settings.identity(record.identity["data"]["store_fingerprint"])


def check_processes(identity: dict) -> None:
    """Raise UserError in all processes unless all have the same identity as process 0."""
    # Otherwise each process would train on other data, and summed gradients would hide it.
    first, *others = processes.gather(identity, "identity")
    for index, other in enumerate(others, 1):
        if changed := "; ".join(differences(first, other)):
            remedy = "use the same command, corpus and code for all"
            processes.raise_first([UserError(f"process {index} differs from process 0 ({changed}); {remedy}")])


def _tuned(settings: dict[str, Any], workdir: Workdir, step: int) -> dict[str, Any]:
    """Fill in settings that the evaluation after a step has tuned, such as a threshold.

    The metrics are read only if an objective has such a setting. Invalid settings are returned unchanged; the code that
    needs them raises the error.
    """
    try:
        config = from_dict(settings)
    except UserError:
        return settings
    if not any(task.objective.traits.tuned_settings for task in config.tasks.values()):
        return settings
    lines = [line for line in read_jsonl(workdir.metrics, "step") if line["step"] == step]
    metrics = {name.removeprefix(_HELDOUT): value for line in lines for name, value in line.items()}
    return settings | {"tasks": to_dict(config.tuned(metrics))["tasks"]}


def read_checkpoint(path: Path, step: str) -> Export:
    """Return a checkpoint of a run as an `Export`; the newest one if `step` is empty.

    Raises:
      UserError: there is no such checkpoint, or it is damaged.
    """
    workdir = Workdir.at(path)
    # Plain dicts, not `read_record`: exporting a checkpoint must not import the run's own modules.
    record = _read(workdir)
    if not storage.exists(workdir.checkpoints):
        raise UserError(f"run {path} has no checkpoints; train it until the first one is saved")
    restored = _restore(Checkpoints(workdir.checkpoints), path, step)
    number, starts = restored.step, read_jsonl(workdir.starts)
    settings = private_paths.without_teachers(record["config"])
    try:
        encoder = encoder_of(settings, record["vocab_size"])
        # The masking of a stage may be a module of the run, and no export needs it.
        stages = typed.build(
            tuple[Stage, ...], [{**stage, "masking": None} for stage in settings["stages"]], "stages", {}
        )
        parts = {part: settings[part] for part in ("lora", "pruning", "quantization")}
        to_model_params = typed.build(ModelParams, parts | {"steps": sum(stage.steps for stage in stages)}, "", {})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{workdir.config} is damaged ({reason(error)}); restore it") from error
    totals = restored.meta["hooks"]["totals"]
    model = Export(
        settings=_tuned(settings, workdir, number),
        encoder=encoder,
        # The state has trained params; export the ones that the model runs with (LoRA merged, pruned, rounded).
        params=jax.tree.map(np.asarray, exported(to_model_params(restored.tree["params"], number))),
        tokenizer=tokenizer.load(Path(workdir.tokenizer)),
        # Only a branch has counts of a trunk.
        numbers={"steps": number, **{k: v for k, v in totals.items() if v or "trunk" not in k}},
        modules=starts[-1].get("modules", {}) if starts else {},
    )
    check_finite(flatten_dict(model.params, sep="/"), f"step {number} of {path}", EARLIER)
    stage, _ = stage_at(stages, max(number - 1, 0))  # at the end of a stage, the encoder has not grown yet
    trained = encoder_at(encoder, stages[stage])
    return model if trained == encoder else with_encoder(model, trained, model.params)


def _restore(checkpoints: Checkpoints, path: Path, step: str) -> RestoredCheckpoint:
    """Read a checkpoint, by default the newest. If a live run deletes the newest one meanwhile, read its successor."""
    while True:
        steps = checkpoints.steps()
        number = int(step) if step.isdecimal() else steps[-1] if steps and not step else None
        if number not in steps:
            raise UserError(
                f"run {path} has no checkpoint {step or 'yet'}; it has {', '.join(map(str, steps)) or 'none'}"
            )
        try:
            return checkpoints.restore(number)
        except Damaged as error:
            if number not in checkpoints.steps():
                continue
            # Name an alternative that is known to work: this verifies older checkpoints until one is intact.
            remedy = "there is no other one that can be read; restore one from a backup"
            for other in reversed([other for other in steps if other != number]):
                with contextlib.suppress(Damaged):
                    checkpoints.restore(other)
                    remedy = f"use {path}@{other}"
                    break
            raise UserError(f"checkpoint {number} of run {path} is damaged ({error}); {remedy}") from error


def start_record(resumes: bool, longer: bool, modules: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Return a start's time, command, versions and devices, for `starts.jsonl`.

    Args:
      resumes: whether the run already has a record.
      longer: whether more steps than before are allowed.
      modules: user modules.
    """
    pairs, joined = zip(sys.orig_argv, sys.orig_argv[1:]), f"{_SECRET}="
    shown = ["..." if last == _SECRET else f"{joined}..." if own.startswith(joined) else own for last, own in pairs]
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "resumes": resumes,
        "longer": longer,
        "command": shlex.join([Path(sys.executable).name, *shown]),
        "devices": [device.device_kind for device in jax.devices()],
        "processes": jax.process_count(),
        "python": sys.version.split()[0],
        "versions": versions.versions() | versions.hashes(modules),
        "modules": modules,
    }
