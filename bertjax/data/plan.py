"""How a split of a token store becomes rows: made once, written beside the store, opened as memory maps."""

import dataclasses
import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bertjax.data.examples import Examples
from bertjax.data.formats.base import ExampleFormat
from bertjax.data.store import TokenStore
from bertjax.errors import UserError

FORMAT_VERSION = 1
_RANGES, _ROWS, _MANIFEST = "ranges.npy", "rows.npy", "plan.json"

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The rows of one split.

    Attributes:
      path: folder of the plan.
      fingerprint: hex, of all that the plan follows from.
      examples: what the rows hold.
      rows_RN: int32, the examples of each row, -1 for none; a memory map.
    """

    path: Path
    fingerprint: str
    examples: Examples
    rows_RN: np.ndarray

    def real_share(self, seq_len: int) -> float:
        """Share of the positions of the rows that hold tokens."""
        return float(self.examples.lengths()[self.rows_RN[self.rows_RN >= 0]].sum() / (len(self.rows_RN) * seq_len))


def open_or_make(store: TokenStore, split: str, examples: ExampleFormat, seq_len: int, seed: int) -> Plan:
    """The plan of a split, from `<store>/plans/` if it is there and unharmed, else made and written there.

    Processes that make the same plan at the same time end up with one of the copies, which are equal.

    Raises:
      UserError: the split gives no row, or the plan cannot be written.
    """
    identity = {
        "format_version": FORMAT_VERSION,
        "store": store.fingerprint,
        "split": split,
        "examples": dataclasses.asdict(examples),
        "seq_len": seq_len,
        "seed": seed,
    }
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    path = store.path / "plans" / fingerprint[:12]
    if path.exists() and not _is_whole(path, identity):
        log.warning("the plan in %s is damaged and is made again", path)
        _attempt(path, lambda: shutil.rmtree(path))
    if not path.exists():
        ranges = np.concatenate([block.ranges for block in examples.blocks(store.split(split), seq_len, seed)])
        if not len(ranges):
            raise UserError(f"the {split} split of {store.path} is too small to fill a row; prepare a larger corpus")
        rows_RN = np.arange(len(ranges), dtype=np.int32)[:, None]
        _attempt(path, lambda: _write(path, identity, ranges, rows_RN))
    return Plan(path, fingerprint, examples.open(store, split, path / _RANGES), np.load(path / _ROWS, mmap_mode="r"))


def _attempt(path: Path, action: Callable[[], None]) -> None:
    try:
        action()
    except OSError as error:
        raise UserError(
            f"cannot write the plan {path} ({error.strerror}); make the store writable or choose another data.store"
        ) from error


def _write(path: Path, identity: dict, ranges: np.ndarray, rows_RN: np.ndarray) -> None:
    """Writes a folder beside `path` and renames it, so that `path` is never half a plan."""
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    draft.mkdir(parents=True)
    try:
        np.save(draft / _RANGES, ranges)
        np.save(draft / _ROWS, rows_RN)
        (draft / _MANIFEST).write_text(json.dumps(_manifest(draft, identity), indent=2), encoding="utf-8")
        os.rename(draft, path)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not path.exists():  # otherwise another process was faster with the same plan
            raise


def _is_whole(path: Path, identity: dict) -> bool:
    try:
        return json.loads((path / _MANIFEST).read_text(encoding="utf-8")) == _manifest(path, identity)
    except (OSError, ValueError):
        return False


def _manifest(path: Path, identity: dict) -> dict:
    digests = {}
    for name in (_RANGES, _ROWS):
        with open(path / name, "rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return {"identity": identity, "digests": digests}
