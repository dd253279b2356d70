"""How a split of a token store becomes rows: made once, written beside the store, opened as memory maps."""

import dataclasses
import functools
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bertjax import storage
from bertjax.data.examples import Examples
from bertjax.data.formats.base import Block, TextFormat
from bertjax.data.packing import assign, pack
from bertjax.data.store import TokenStore, edges
from bertjax.errors import UserError

FORMAT_VERSION = 2
_RANGES, _ROWS, _MANIFEST = "ranges.npy", "rows.npy", "plan.json"
# Examples packed together: memory stays that of one such block however many blocks there are.
PACKED_AT_ONCE = 1 << 24
_TOKENS_PER_EXAMPLE = 16

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Spec:
    """What a plan is made for.

    Attributes:
      split: `train` or `heldout`.
      source: the one source whose documents are used; empty for all of them.
      examples: how text becomes examples.
      seq_len: T.
      row_examples: examples that may share a row; 1 for none, 0 for one per 16 tokens of the row.
      seed: of the run.
      number: plans of one run differ by it.
    """

    split: str
    examples: TextFormat
    seq_len: int
    seed: int
    row_examples: int = 0
    source: str = ""
    number: int = 0

    @property
    def most(self) -> int:
        """Examples that may share a row, at least 1."""
        return self.row_examples or max(1, self.seq_len // _TOKENS_PER_EXAMPLE)

    @property
    def plan_seed(self) -> int:
        """The seed of this plan among those of the run; that of the first is the run's."""
        return self.seed + (self.number << 32)

    def identity(self, store: TokenStore) -> dict:
        """All that the plan follows from."""
        identity = dataclasses.asdict(self) | {"format_version": FORMAT_VERSION, "store": store.fingerprint}
        return json.loads(json.dumps(identity))  # as it is read again: a tuple is a list there


@dataclasses.dataclass(frozen=True)
class Counts:
    """What is in a plan.

    Attributes:
      rows: R.
      slots: N, the most examples of any row.
      examples: E.
      tokens: of all examples, [CLS] and [SEP] included.
      split_tokens: of the documents that the examples are made of.
      lost_tokens: tokens of the split that are in no example.
      repeated_tokens: tokens that are in an example a second time.
    """

    rows: int
    slots: int
    examples: int
    tokens: int
    split_tokens: int
    lost_tokens: int
    repeated_tokens: int

    def real_share(self, seq_len: int) -> float:
        """Share of the positions of the rows that hold tokens."""
        return self.tokens / (self.rows * seq_len)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The rows of one split; pickled as its path, so that the maps open again where it lands.

    Attributes:
      path: folder of the plan.
      fingerprint: hex, of all that the plan follows from.
      examples: what the rows hold.
      counts: of them.
    """

    path: Path
    fingerprint: str
    examples: Examples
    counts: Counts

    def __getstate__(self) -> dict:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def rows_RN(self) -> np.ndarray:
        """The examples of each row, -1 for none; int32, a memory map."""
        return np.load(self.path / _ROWS, mmap_mode="r").view(np.ndarray)


def open_or_make(store: TokenStore, spec: Spec) -> Plan:
    """The plan of a split, from `<store>/plans/` if it is there and unharmed, else made and written there.

    Of processes that want the same plan at the same time one makes it and the others wait.

    Raises:
      UserError: the split gives no row, or the plan cannot be written.
    """
    identity = spec.identity(store)
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    path = store.path / "plans" / fingerprint[:12]
    counts = _read(path, identity)
    if counts is None:
        try:
            counts = _make_alone(store, spec, path, identity)
        except OSError as error:
            raise UserError(
                f"cannot write the plan {path} ({error.strerror}); make the store writable or choose another data.store"
            ) from error
    return Plan(path, fingerprint, spec.examples.open(store, spec.split, path / _RANGES), counts)


def _make_alone(store: TokenStore, spec: Spec, path: Path, identity: dict) -> Counts:
    """Makes a plan, or waits for the process that makes it: none takes away what another has just made."""
    with storage.lock_or_wait(path.with_name(f".{path.name}.lock")):
        if (counts := _read(path, identity)) is not None:
            return counts
        if path.exists():
            log.warning("the plan in %s is damaged and is made again", path)
            shutil.rmtree(path)
        _make(store, spec, path, identity)
        return _read(path, identity)


def _make(store: TokenStore, spec: Spec, path: Path, identity: dict) -> None:
    """Writes a folder beside `path` and renames it, so that `path` is never half a plan."""
    with storage.whole_folder(path) as draft:
        split = store.split(spec.split, spec.source)
        blocks = spec.examples.blocks(split, spec.seq_len, spec.plan_seed)
        written, lost, repeated = _write_ranges(draft / _RANGES, blocks)
        if not written:
            where = f"the {spec.split} split" + (f" of source {spec.source}" if spec.source else "")
            raise UserError(f"{where} of {store.path} is too small to fill a row; use a larger corpus")
        examples = spec.examples.open(store, spec.split, draft / _RANGES)
        packed = _write_rows(draft / _ROWS, examples, spec)
        split_tokens = int(np.diff(split.sentences[split.documents[[0, -1]]])[0])
        counts = Counts(
            **packed, examples=written, split_tokens=split_tokens, lost_tokens=lost, repeated_tokens=repeated
        )
        manifest = {"identity": identity, "counts": dataclasses.asdict(counts), "files": _files(draft)}
        (draft / _MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _write_ranges(path: Path, blocks: Iterator[Block]) -> tuple[int, int, int]:
    """Writes the ranges of all blocks; returns how many examples there are, tokens lost and tokens repeated."""
    lost = repeated = 0
    with _GrowingArray(path) as array:
        for block in blocks:
            array.append(block.ranges)
            lost += block.lost_tokens
            repeated += block.repeated_tokens
    return array.length, lost, repeated


def _write_rows(path: Path, examples: Examples, spec: Spec) -> dict[str, int]:
    """Packs block by block and writes the rows; returns `rows`, `slots` and `tokens`."""
    starts = range(0, len(examples), PACKED_AT_ONCE)
    patterns, tokens = [], 0
    for start in starts:
        histogram = np.bincount(examples.lengths(start, start + PACKED_AT_ONCE), minlength=spec.seq_len + 1)
        patterns.append(pack(histogram, spec.most))
        tokens += int(histogram @ np.arange(len(histogram)))
    slots = max(pattern.examples for block in patterns for pattern in block)
    with _GrowingArray(path) as array:
        for start, block in zip(starts, patterns):
            rows_RN = assign(examples.lengths(start, start + PACKED_AT_ONCE), block, slots)
            array.append(np.where(rows_RN < 0, -1, rows_RN + start).astype(np.int32))
    return {"rows": array.length, "slots": slots, "tokens": tokens}


class _GrowingArray:
    """Writes an .npy file whose first axis grows: numpy leaves room in the header for the length to come."""

    def __init__(self, path: Path):
        self._path = path
        self.length = 0

    def __enter__(self) -> "_GrowingArray":
        self._file = open(self._path, "wb")
        return self

    def append(self, values: np.ndarray) -> None:
        if not len(values):
            return
        if not self.length:
            self._of_one = values[:0]
            self._write_header()
        self._file.write(np.ascontiguousarray(values).tobytes())
        self.length += len(values)

    def __exit__(self, *_) -> None:
        if self.length:
            self._file.seek(0)
            self._write_header()
        self._file.close()

    def _write_header(self) -> None:
        header = np.lib.format.header_data_from_array_1_0(self._of_one)
        header["shape"] = (self.length, *self._of_one.shape[1:])
        np.lib.format.write_array_header_1_0(self._file, header)


def _read(path: Path, identity: dict) -> Counts | None:
    """What is in a plan, None where it is not there or not as it was written."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        whole = manifest["identity"] == identity and manifest["files"] == _files(path)
        return Counts(**manifest["counts"]) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _files(path: Path) -> dict[str, dict]:
    """Size, and hash of head and tail, of the arrays: all of a plan of billions would take minutes to hash."""
    return {name: {"bytes": (path / name).stat().st_size, "edges": edges(path / name)} for name in (_RANGES, _ROWS)}
