"""The workdir of a run: the paths of its files, its lock, and its JSON files."""

import dataclasses
import functools
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from etils import epath

from bertjax import locks, storage, untrusted
from bertjax.errors import UserError, json_text, reason
from bertjax.storage import is_remote
from bertjax.training.run.lease import Lease, lease

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Workdir:
    """Paths of a run."""

    root: epath.Path

    @classmethod
    def at(cls, path: epath.PathLike) -> "Workdir":
        """Return the workdir at a path, which need not exist.

        Raises:
          UserError: the path cannot be the name of a folder, or is a URL of a kind that is not known.
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
        """The workdir for the user's code: `pathlib` cannot hold a URL."""
        return self.root if is_remote(self.root) else Path(self.root)

    @property
    def config(self) -> epath.Path:
        return self.root / "config.json"

    @property
    def tokenizer(self) -> epath.Path:
        return self.root / "tokenizer"

    @property
    def starts(self) -> epath.Path:
        return self.root / "starts.jsonl"

    @property
    def versions(self) -> epath.Path:
        return self.root / "versions.json"

    @property
    def metrics(self) -> epath.Path:
        return self.root / "metrics.jsonl"

    @property
    def elapsed(self) -> epath.Path:
        return self.root / "elapsed.json"

    @property
    def heartbeat(self) -> epath.Path:
        return self.root / "heartbeat.json"

    @property
    def failures(self) -> epath.Path:
        return self.root / "failures.jsonl"

    @property
    def spikes(self) -> epath.Path:
        return self.root / "spikes.jsonl"

    @property
    def profile(self) -> epath.Path:
        return self.root / "profile"

    @property
    def events(self) -> epath.Path:
        return self.root / "events"

    @property
    def samples(self) -> epath.Path:
        return self.root / "samples.jsonl"

    @property
    def evaluations(self) -> epath.Path:
        """The score of each evaluation, by which `runtime.keep_best` keeps checkpoints."""
        return self.root / "evaluations.jsonl"

    @property
    def predictions(self) -> epath.Path:
        return self.root / "predictions"

    @property
    def scores(self) -> epath.Path:
        return self.root / "scores.npz"

    @property
    def checkpoints(self) -> epath.Path:
        return self.root / "checkpoints"

    def saved_steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, in order, without the help of Orbax.

        On a disk, Orbax renames a checkpoint when it is complete. A bucket cannot rename a folder: there the name is
        final from the first file on, and the last file is a mark (`CommitFileTemporaryPath` of Orbax 0.12.8).

        Raises:
          StorageError: the folder cannot be read.
        """
        names = [name for name in storage.names_in(self.checkpoints) if name.isdecimal()]
        if os.fspath(self.checkpoints).startswith("gs://"):
            names = [name for name in names if storage.exists(self.checkpoints / name / "commit_success.txt")]
        return sorted(map(int, names))

    @property
    def trial_checkpoint(self) -> epath.Path:
        return self.root / "checkpoints.trial"

    @property
    def export(self) -> epath.Path:
        return self.root / "export"

    @property
    def summary(self) -> epath.Path:
        return self.root / "summary.json"

    @property
    def curves(self) -> epath.Path:
        return self.root / "curves.png"

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
        path = self.root / ".lock"
        if is_remote(self.root):
            storage.retry(lambda: self.root.mkdir(parents=True, exist_ok=True), self.root)
            return lease(path)
        kind, mount = locks.file_system_of(self.root)
        if kind == "fuse" or kind.startswith("fuse."):
            log.warning(
                "workdir %s is on %s (%s): another machine would not see its lock, and files may be written late; on a "
                "bucket, use its URL (gs://...) as --workdir",
                *(self.root, mount, kind),
            )
        busy = f"workdir {self.root} is in use by a live run; wait for it or choose another --workdir"
        return locks.lock_or_fail(Path(path), busy)


def read_json(path: epath.Path, *keys: str) -> dict[str, Any]:
    """Read a JSON object with these keys.

    Raises:
      UserError: the file is not such an object.
      StorageError: it cannot be read.
    """
    content = storage.read_bytes(path)
    try:
        value = untrusted.parse_json(content)
        missing = [key for key in keys if key not in value]
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({reason(error)}); restore it, or use another --workdir") from error
    if missing or not isinstance(value, dict):
        problem = f"it has no {', '.join(missing)}" if missing else "it is not a JSON object"
        raise UserError(f"{path} is damaged ({problem}); restore it, or use another --workdir")
    return value


def write_json(path: epath.Path, value: Any) -> None:
    """Write a JSON file, all of it or nothing, with the content of `bertjax.errors.json_text`."""
    text = json_text(value, indent=2) + "\n"
    storage.retry(lambda: storage.write_text(path, text), path)


def is_finished(summary: Mapping[str, Any], steps: int | None) -> bool:
    """Return whether a `summary.json` is of the end of a run of `steps` steps.

    The summary of a run that goes on is that of its newest evaluation. Before its first evaluation, an extended run
    still has the summary of its earlier end.
    """
    return bool(summary) and summary["finished"] and summary["steps"] == steps


def has_finished(files: Workdir) -> bool:
    """Return whether a run has done all steps of its newest start.

    Raises:
      UserError: a file of the run is damaged.
      StorageError: a file cannot be read.
    """
    if not (storage.exists(files.config) and storage.exists(files.summary)):
        return False
    stages = read_json(files.config, "config")["config"]["stages"]
    return is_finished(read_json(files.summary, "finished", "steps"), sum(stage["steps"] for stage in stages))


def has_trained(path: epath.PathLike) -> bool:
    """Return whether a workdir, or that of the first of several seeds, has a checkpoint."""
    root = Workdir.at(path).root
    return any(Workdir(folder).saved_steps() for folder in (root, root / "seed=0"))


def write_jsonl(path: epath.Path, records: Iterable[dict]) -> None:
    """Write one record per line, all of them or nothing; the folder is created."""
    storage.retry(lambda: path.parent.mkdir(parents=True, exist_ok=True), path)
    storage.retry(lambda: storage.write_bytes(path, _encoded(records)), path)


def _encoded(records: Iterable[dict]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def append_jsonl(path: epath.Path, record: dict) -> None:
    """Append one line."""
    line = json.dumps(record, ensure_ascii=False) + "\n"
    if is_remote(path):
        content = _content(path) + line.encode()
        storage.retry(lambda: storage.write_bytes(path, content), path)
        return
    with storage.storage_errors(path), open(path, "a", encoding="utf-8") as file:
        file.write(line)


@contextmanager
def local_folder(folder: epath.Path) -> Iterator[Path]:
    """Provide a local folder to write the files of `folder`: itself, or for a URL one that is copied there on exit."""
    if not is_remote(folder):
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)
        files = [path for path in Path(scratch).rglob("*") if path.is_file()]
        # JSON files refer to the others, and the manifest of an export, in its root, to all of them.
        for path in sorted(files, key=lambda path: (path.suffix == ".json", path.parent == Path(scratch))):
            target = folder / path.relative_to(scratch).as_posix()
            storage.retry(functools.partial(target.parent.mkdir, parents=True, exist_ok=True), target)
            storage.retry(functools.partial(target.write_bytes, path.read_bytes()), target)


def segment(path: epath.Path, number: int) -> epath.Path:
    """Return the path of one segment of a file of JSON lines on an object store: `metrics-00012.jsonl`."""
    return path.with_name(f"{path.stem}-{number:05}{path.suffix}")


def next_segment(path: epath.Path) -> int:
    """Return the number of the first segment that does not exist yet."""
    segments = _segments(path)
    return int(segments[-1].stem[-5:]) + 1 if segments else 0


def parts_of(path: epath.Path) -> list[epath.Path]:
    """Return the files that hold a file of JSON lines, oldest first: the file, if it exists, and its segments."""
    return [part for part in [path] if storage.exists(part)] + _segments(path)


def _segments(path: epath.Path) -> list[epath.Path]:
    pattern = re.compile(rf"{re.escape(path.stem)}-\d{{5}}{re.escape(path.suffix)}")
    return [path.with_name(name) for name in storage.names_in(path.parent) if pattern.fullmatch(name)]


def read_jsonl(path: epath.Path) -> list[dict]:
    """Return the records of a file and of its segments, without a last line that a kill cut short; empty without both.

    Raises:
      UserError: another line is not a JSON object.
      Unavailable: the store does not answer.
    """
    parts = parts_of(path)
    records = [record for part in parts for record in _records(part, storage.read_bytes(part))]
    # A run that was copied from an object store and continued on a disk has segments that are older than the file.
    return sorted(records, key=_step) if len(parts) > 1 else records


def _step(record: dict) -> float:
    return record.get("step", 0)


def _records(path: epath.Path, content: bytes) -> list[dict]:
    *lines, _ = content.split(b"\n")  # bytes: the cut may be inside a character
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("it is not a JSON object")
        except ValueError as error:
            raise UserError(f"{path}:{number} is damaged ({error}); delete the line to continue without it") from error
        records.append(record)
    return records


def _content(path: epath.Path) -> bytes:
    return storage.read_bytes(path) if storage.exists(path) else b""


def cut_jsonl(path: epath.Path, last_step: float) -> None:
    """Drop a line that was cut short, and the records after a step, which a resumed run writes again."""
    for part in [path, *reversed(_segments(path))]:
        before = _content(part)
        kept = [record for record in _records(part, before) if _step(record) <= last_step]
        after = _encoded(kept)
        if not kept and part != path:
            storage.retry(part.unlink, part)
        elif after != before:
            storage.retry(functools.partial(storage.write_bytes, part, after), part)
        if kept and part != path:
            break  # the segments before it have earlier steps only
