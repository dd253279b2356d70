"""A run's workdir: file paths, the lock, and reading and writing JSON files."""

import dataclasses
import functools
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from etils import epath

from bertjax.runtime import locks, storage, untrusted
from bertjax.runtime.errors import UserError, json_text, reason
from bertjax.runtime.storage import is_remote
from bertjax.training.run.lease import Lease, lease

log = logging.getLogger(__name__)


# Folder of a run on all records, beside those of the folds of a labeled file.
ALL = "all"


def _place(name: str) -> Any:
    """Return a property: the path of this name in a workdir."""
    return property(lambda workdir: workdir.root / name)


@dataclasses.dataclass(frozen=True)
class Workdir:
    """Paths in the workdir of a run."""

    root: epath.Path
    lock = _place(".lock")
    config = _place("config.json")
    tokenizer = _place("tokenizer")
    starts = _place("starts.jsonl")
    versions = _place("versions.json")
    metrics = _place("metrics.jsonl")
    elapsed = _place("elapsed.json")
    heartbeat = _place("heartbeat.json")
    failures = _place("failures.jsonl")
    spikes = _place("spikes.jsonl")
    profile = _place("profile")
    events = _place("events")
    samples = _place("samples.jsonl")
    evaluations = _place("evaluations.jsonl")  # by which `runtime.keep_best` ranks checkpoints
    predictions = _place("predictions")
    # Facts about the labeled files and the model, known before the first step (`labeled_block`).
    labeled = _place("labeled.json")
    scores = _place("scores.npz")
    checkpoints = _place("checkpoints")
    trial_checkpoint = _place("checkpoints.trial")
    export = _place("export")
    export_ema = _place("export_ema")  # the moving average of the weights; only with `optimizer.ema_decay`
    summary = _place("summary.json")
    curves = _place("curves.png")

    @classmethod
    def at(cls, path: epath.PathLike) -> "Workdir":
        """Return the workdir at a path, which need not exist.

        Raises:
          UserError: the path cannot be a folder name, or is a URL with an unknown scheme.
        """
        name = os.fspath(path)
        if re.search(r"[\x00-\x1f\x7f]", name):
            raise UserError(f"workdir {name!r} has control characters; choose another name")
        if re.match(r"\w+:/[^/]", name):
            raise UserError(f"workdir {name} has one slash after its scheme; write {name.replace(':/', '://', 1)}")
        try:
            return cls(epath.Path(path).expanduser())
        except KeyError as error:
            raise UserError(f"workdir {name} is on unknown storage; use a folder, gs:// or s3://") from error

    @property
    def path(self) -> Path | epath.Path:
        """The workdir as `pathlib.Path` for user code; URLs stay `epath`, since `pathlib` cannot hold them."""
        return self.root if is_remote(self.root) else Path(self.root)

    def split(self, task: str, name: str) -> epath.Path:
        """File with the training or held-out records of a task whose labeled file the run has divided."""
        return self.root / "split" / f"{task}-{name}.jsonl"

    def saved_steps(self) -> list[int]:
        """Return the steps of complete checkpoints in order, without importing Orbax.

        On a disk, Orbax renames a checkpoint when it is complete. A bucket cannot rename folders, so the name is final
        from the first file on, and a mark is written last (`CommitFileTemporaryPath` in Orbax 0.12.8).

        Raises:
          StorageError: the folder cannot be read.
        """
        names = [name for name in storage.names_in(self.checkpoints) if name.isdecimal()]
        if os.fspath(self.checkpoints).startswith("gs://"):
            names = [name for name in names if storage.exists(self.checkpoints / name / "commit_success.txt")]
        return sorted(map(int, names))

    def check_checkpoints(self) -> None:
        """Raise UserError if Orbax cannot write checkpoints to this path that it can read."""
        path = os.fspath(self.root if is_remote(self.root) else self.root.absolute())
        if is_remote(path) and not path.startswith("gs://"):
            raise UserError(
                f"workdir {path} cannot hold checkpoints, which are written to disks and gs:// only; choose another "
                "--workdir"
            )
        # Orbax 0.12.8 collects the arrays of a checkpoint with a glob pattern that contains the whole path
        # (`merge_ocdbt_per_process_files`), and TensorStore takes a backslash for a slash. The checkpoint then has no
        # arrays, which nobody notices before it is restored.
        if special := re.search(r"[][*?\\]", path):
            raise UserError(
                f"workdir {path} has {special[0]} in its path, and checkpoints there could not be read; choose another "
                "--workdir, without [ ] * ? and \\"
            )

    @contextmanager
    def locked(self) -> Iterator[Lease | None]:
        """Create the workdir and lock it for this process.

        Returns:
          The lock, which can be lost on an object store; None on a disk, where it cannot.

        Raises:
          Busy: another process has locked it.
          UserError: it cannot be written.
          Unavailable: its disk or object store does not answer.
        """
        # Only the holder of the lock may remove drafts: a live process may still be writing its own.
        with ExitStack() as stack:
            try:
                lock = stack.enter_context(self._lock())
            except OSError as error:
                what = f"workdir {self.root} cannot be written"
                raise storage.user_error(error, what, "choose another --workdir") from error
            if not is_remote(self.root):
                storage.remove_drafts(Path(self.root))
            yield lock

    def _lock(self) -> AbstractContextManager[Lease | None]:
        if is_remote(self.root):
            storage.retry(lambda: self.root.mkdir(parents=True, exist_ok=True), self.root)
            return lease(self.lock)
        kind, mount = locks.file_system_of(self.root)
        if kind == "fuse" or kind.startswith("fuse."):
            log.warning(
                "workdir %s is on %s (%s): another machine would not see its lock, and files may be written late; on a "
                "bucket, use its URL (gs://...) as --workdir",
                *(self.root, mount, kind),
            )
        busy = f"workdir {self.root} is in use by a live run; wait for it or choose another --workdir"
        return locks.lock_or_fail(Path(self.lock), busy)


def read_json(path: epath.Path, *keys: str) -> dict[str, Any]:
    """Read a JSON object that must have these keys.

    Raises:
      UserError: the file is not a JSON object, or lacks a key.
      StorageError: it cannot be read.
    """
    content = storage.read_bytes(path)
    try:
        return _with_keys(untrusted.parse_json(content), keys)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({reason(error)}); restore it, or use another --workdir") from error


def _with_keys(value: Any, keys: Sequence[str]) -> dict[str, Any]:
    """Return a JSON object; raise ValueError for another value, or one that lacks a key."""
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    if missing := [key for key in keys if key not in value]:
        raise ValueError(f"it has no {', '.join(missing)}")
    return value


def write_json(path: epath.Path, value: Any) -> None:
    """Write a JSON file atomically, as formatted by `bertjax.runtime.errors.json_text`."""
    text = json_text(value, indent=2) + "\n"
    storage.retry(lambda: storage.write_text(path, text), path)


def is_finished(summary: Mapping[str, Any], steps: int | None) -> bool:
    """Return whether `summary.json` was written at the end of a run with `steps` steps.

    While a run trains, the file has the results of its newest evaluation. An extended run keeps the summary from its
    earlier end until it is evaluated again.
    """
    return bool(summary) and summary["finished"] and summary["steps"] == steps


def has_finished(files: Workdir) -> bool:
    """Return whether a run has done all steps in its newest configuration.

    Raises:
      UserError: a file in the workdir is damaged.
      StorageError: a file cannot be read.
    """
    if not (storage.exists(files.config) and storage.exists(files.summary)):
        return False
    stages = read_json(files.config, "config")["config"]["stages"]
    return is_finished(read_json(files.summary, "finished", "steps"), sum(stage["steps"] for stage in stages))


def runs_in(folder: epath.Path) -> list[epath.Path]:
    """Return the workdirs of the seeds or folds in a folder, in order; empty if it holds no such runs."""
    names = storage.names_in(folder)
    # By length first, so that seed=10 follows seed=9.
    runs = sorted((name for name in names if name.startswith(("seed=", "fold="))), key=lambda name: (len(name), name))
    if "fold=0" in runs and ALL in names:
        runs.append(ALL)
    return [folder / name for name in runs]


def has_trained(path: epath.PathLike) -> bool:
    """Return whether a workdir has a checkpoint, or that of one of its seeds, folds or combinations of a sweep."""
    root = Workdir.at(path).root
    runs = [root / name for name in storage.names_in(root) if "=" in name]
    seeds = [run / name for run in runs for name in storage.names_in(run) if name.startswith("seed=")]
    return any(Workdir(folder).saved_steps() for folder in (root, *runs, *seeds))


def write_jsonl(path: epath.Path, records: Iterable[dict]) -> None:
    """Write one record per line, atomically; the folder is created."""
    storage.retry(lambda: path.parent.mkdir(parents=True, exist_ok=True), path)
    storage.retry(lambda: storage.write_bytes(path, _encoded(records)), path)


def _encoded(records: Iterable[dict]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def append_jsonl(path: epath.Path, record: dict) -> None:
    """Append one line to a short file; half a line, which a killed process has left at its end, is dropped."""
    content, line = _content(path), _encoded([record])
    whole = content[: content.rfind(b"\n") + 1]
    if is_remote(path) or len(whole) < len(content):
        storage.retry(lambda: storage.write_bytes(path, whole + line), path)
        return
    with storage.storage_errors(path), open(path, "ab") as file:  # other processes may append as well
        file.write(line)


@contextmanager
def local_folder(folder: epath.Path) -> Iterator[Path]:
    """Yield a local folder to write into: `folder` itself, or for a URL a scratch folder that is uploaded on exit."""
    if not is_remote(folder):
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)
        files = [path for path in Path(scratch).rglob("*") if path.is_file()]
        # JSON files refer to other files, and an export's manifest, in its root, to all of them: upload these last.
        for path in sorted(files, key=lambda path: (path.suffix == ".json", path.parent == Path(scratch))):
            target = folder / path.relative_to(scratch).as_posix()
            storage.retry(functools.partial(target.parent.mkdir, parents=True, exist_ok=True), target)
            storage.retry(functools.partial(target.write_bytes, path.read_bytes()), target)


def next_segment(path: epath.Path) -> int:
    """Return the number of the next new segment: of those before, some may be gone."""
    segments = _segments(path)
    return int(segments[-1].stem[-5:]) + 1 if segments else 0


def parts_of(path: epath.Path) -> list[epath.Path]:
    """Return all parts of a JSON Lines file, oldest first: the file, if it exists, and its segments."""
    return [part for part in [path] if storage.exists(part)] + _segments(path)


def _segments(path: epath.Path) -> list[epath.Path]:
    pattern = re.compile(rf"{re.escape(path.stem)}-\d{{5}}{re.escape(path.suffix)}")
    return [path.with_name(name) for name in storage.names_in(path.parent) if pattern.fullmatch(name)]


def read_jsonl(path: epath.Path, *keys: str) -> list[dict]:
    """Return the records in a file and its segments, empty if none exist; a truncated last line is dropped.

    Args:
      path: the file.
      keys: keys that every record must have.

    Raises:
      UserError: another line is not a JSON object, or lacks a key.
      Unavailable: the store does not answer.
    """
    parts = parts_of(path)
    records = [record for part in parts for record in _records(part, storage.read_bytes(part), keys)]
    # A run that was copied from an object store and continued on a disk has segments older than the file.
    return sorted(records, key=_step) if len(parts) > 1 else records


def _step(record: dict) -> float:
    return record.get("step", 0)


def _records(path: epath.Path, content: bytes, keys: Sequence[str] = ()) -> list[dict]:
    *lines, _ = content.split(b"\n")  # split bytes, not text: a kill may cut a line inside a UTF-8 character
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_with_keys(json.loads(line), keys))
        except ValueError as error:
            raise UserError(f"{path}:{number} is damaged ({error}); delete the line to continue without it") from error
    return records


def _content(path: epath.Path) -> bytes:
    return storage.read_bytes(path) if storage.exists(path) else b""


def cut_jsonl(path: epath.Path, last_step: float) -> None:
    """Drop a truncated last line and all records after a step, which a resumed run writes again."""
    for part in [path, *reversed(_segments(path))]:
        before = _content(part)
        kept = [record for record in _records(part, before) if _step(record) <= last_step]
        after = _encoded(kept)
        if not kept and part != path:
            storage.retry(part.unlink, part)
        elif after != before:
            storage.retry(functools.partial(storage.write_bytes, part, after), part)
        if kept and part != path:
            break  # older segments have earlier steps only
