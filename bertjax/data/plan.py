"""Plan for a split: token range per example, and examples per row.

A plan is computed once, written into the store's folder and opened as memory maps.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
from etils import epath

from bertjax.data import remote
from bertjax.data.examples import Examples
from bertjax.data.formats import Block, TextFormat
from bertjax.data.packing import assign, pack
from bertjax.data.store import TokenStore, at_random, edges
from bertjax.runtime import locks, storage
from bertjax.runtime.errors import UserError

_RANGES, _ROWS, _MANIFEST = "ranges.npy", "rows.npy", "plan.json"
# Examples per packed block, which bounds the memory.
PACKED_AT_ONCE = 1 << 24
# Rows hold example numbers as int32.
MOST_EXAMPLES = np.iinfo(np.int32).max
_TOKENS_PER_EXAMPLE = 16

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Spec:
    """All settings that determine a plan.

    Attributes:
      split: `train` or `heldout`.
      examples: example format.
      seq_len: T.
      seed: the run's seed.
      row_examples: most examples in a row; 0 allows one per 16 tokens.
      source: name of the only source to use; empty for all sources.
      number: index among the run's plans for the same split.
    """

    split: str
    examples: TextFormat
    seq_len: int
    seed: int
    row_examples: int = 0
    source: str = ""
    number: int = 0

    @property
    def max_row_examples(self) -> int:
        """The most examples in a row, at least 1."""
        return self.row_examples or max(1, self.seq_len // _TOKENS_PER_EXAMPLE)

    @property
    def plan_seed(self) -> int:
        """The seed for this plan. The first plan has the run's seed."""
        # Above 32 bits: with seed + number, plan 1 of seed 0 would equal plan 0 of seed 1.
        return self.seed + (self.number << 32)

    def identity(self, store: TokenStore) -> dict:
        """Return everything that determines the plan, as JSON values."""
        identity = dataclasses.asdict(self) | {
            "examples": self.examples.identity(),
            "format_version": self.examples.version,
            "store": store.fingerprint,
        }
        if not self.examples.is_random:  # one plan serves all seeds and all numbers
            identity |= {"seed": 0, "number": 0}
        return json.loads(json.dumps(identity))  # lists instead of tuples, as when it is read from disk


@dataclasses.dataclass(frozen=True)
class Counts:
    """Plan sizes.

    Attributes:
      rows: R.
      slots: N, the most examples in a row.
      examples: E.
      tokens: tokens in all examples, [CLS] and [SEP] included.
      split_tokens: tokens in the documents that were planned.
      lost_tokens: tokens that are in no example.
      repeated_tokens: tokens that are in a second example.
    """

    rows: int
    slots: int
    examples: int
    tokens: int
    split_tokens: int
    lost_tokens: int
    repeated_tokens: int

    def real_share(self, seq_len: int) -> float:
        """Return the fraction of row positions that hold tokens."""
        return self.tokens / (self.rows * seq_len)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Rows for one split. Pickled without its memory maps; another process opens them again.

    Attributes:
      path: plan folder.
      fingerprint: hex hash over everything that determines the plan.
      examples: the examples in the rows.
    """

    path: Path
    fingerprint: str
    examples: Examples
    counts: Counts

    def __getstate__(self) -> dict:
        # Fields only: a cached memory map would be pickled with all of its content.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def rows_RN(self) -> np.ndarray:
        """Examples per row, -1 for an empty slot; int32, a memory map."""
        return at_random(np.load(self.path / _ROWS, mmap_mode="r"))

    def rows(self, rows: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """Return the examples in rows (int64 [B]), -1 for empty slots; int32 [B, N]. They are equal in all epochs."""
        return self.rows_RN[rows]


def open_or_make(store: TokenStore, spec: Spec) -> Plan:
    """Open a split's plan in `<store>/plans/`; make it first if it is missing or damaged.

    If several processes need the same plan at once, one makes it and the others wait. If the store is remote, its plans
    are also uploaded beside it.

    Raises:
      UserError: the split is too small for a row, or the plan cannot be written.
    """
    identity = spec.identity(store)
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    path = store.path / "plans" / fingerprint[:12]
    counts = _read(path, identity)
    if counts is None:
        try:
            with storage.storage_errors(path):
                counts = _make_alone(store, spec, path, identity)
        except OSError as error:
            remedy = "make the store writable or choose another data.store"
            raise storage.user_error(error, f"cannot write the plan {path}", remedy) from error
    return Plan(path, fingerprint, spec.examples.open(store, spec.split, path / _RANGES), counts)


def _make_alone(store: TokenStore, spec: Spec, path: Path, identity: dict) -> Counts:
    """Make or download a plan, or wait for the process that does."""
    with locks.lock_or_wait(path.with_name(f".{path.name}.lock")):
        if (counts := _read(path, identity)) is not None:
            return counts
        # Whoever held the lock before left no valid plan, so this folder cannot be one that is still being written.
        if path.exists():
            log.warning("the plan in %s is damaged; making it again", path)
            shutil.rmtree(path)
        storage.remove_drafts(path.parent, path.name)
        origin = epath.Path(store.origin) / "plans" / path.name if store.origin else None
        if origin and remote.download(origin, path, _MANIFEST):
            if (counts := _read(path, identity)) is not None:
                return counts
            shutil.rmtree(path)
        _make(store, spec, path, identity)
        if origin:
            try:
                remote.upload(path, origin, _MANIFEST)
            except UserError as error:  # this run has its local copy
                log.warning("%s; the next host makes the plan again", error)
        return cast(Counts, _read(path, identity))


def _make(store: TokenStore, spec: Spec, path: Path, identity: dict) -> None:
    """Write a plan folder."""
    with storage.whole_folder(path) as draft:
        split = store.split(spec.split, spec.source)
        parts = [split]
        # A random partner from another language would be recognized by its script alone, see `is_of_one_source`.
        if spec.examples.is_of_one_source and not spec.source:
            parts = store.by_source(spec.split)
        longest = spec.examples.longest(spec.seq_len)
        blocks = itertools.chain.from_iterable(spec.examples.blocks(part, longest, spec.plan_seed) for part in parts)
        where = f"the {spec.split} split" + (f" of source {spec.source}" if spec.source else "") + f" of {store.path}"
        written, lost, repeated = _write_ranges(draft / _RANGES, blocks, where)
        if not written:
            raise UserError(f"{where} is too small to fill a row; use a larger corpus")
        examples = spec.examples.open(store, spec.split, draft / _RANGES)
        packed = _write_rows(draft / _ROWS, examples, spec)
        # Two look-ups turn the first and last document offset into sentence offsets, and these into token offsets.
        split_tokens = int(np.diff(split.sentences[split.documents[[0, -1]]])[0])
        counts = Counts(
            **packed, examples=written, split_tokens=split_tokens, lost_tokens=lost, repeated_tokens=repeated
        )
        manifest = {"identity": identity, "counts": dataclasses.asdict(counts), "files": _files(draft)}
        (draft / _MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _write_ranges(path: Path, blocks: Iterator[Block], where: str) -> tuple[int, int, int]:
    """Write all token ranges; count examples, lost tokens and repeated tokens."""
    lost = repeated = 0
    with _GrowingArray(path) as array:
        for block in blocks:
            array.append(block.ranges)
            if array.length > MOST_EXAMPLES:  # fail now, not after hours of packing
                remedy = "raise stages.0.seq_len, or lower data.share"
                raise UserError(f"{where} makes more than {MOST_EXAMPLES:,} examples, the most of a plan; {remedy}")
            lost += block.lost_tokens
            repeated += block.repeated_tokens
    return array.length, lost, repeated


def _write_rows(path: Path, examples: Examples, spec: Spec) -> dict[str, int]:
    """Pack block by block and write the rows; return `rows`, `slots` and `tokens`."""
    starts = range(0, len(examples), PACKED_AT_ONCE)
    patterns, tokens = [], 0
    for start in starts:
        histogram = np.bincount(examples.lengths(start, start + PACKED_AT_ONCE), minlength=spec.seq_len + 1)
        patterns.append(pack(histogram, spec.max_row_examples))
        tokens += int(histogram @ np.arange(len(histogram)))
    # All blocks must be packed before the first row is written: N is the most examples in any row.
    slots = max(pattern.examples for block in patterns for pattern in block)
    with _GrowingArray(path) as array:
        for start, block in zip(starts, patterns):
            rows_RN = assign(examples.lengths(start, start + PACKED_AT_ONCE), block, slots)
            array.append(np.where(rows_RN < 0, -1, rows_RN + start).astype(np.int32))
    return {"rows": array.length, "slots": slots, "tokens": tokens}


class _GrowingArray:
    """Writes an .npy file with a growing first axis. numpy pads the header, so the final length fits in place."""

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
            self._empty = values[:0]
            self._write_header()
        self._file.write(np.ascontiguousarray(values).tobytes())
        self.length += len(values)

    def __exit__(self, *_) -> None:
        if self.length:
            self._file.seek(0)
            self._write_header()
        self._file.close()

    def _write_header(self) -> None:
        header = np.lib.format.header_data_from_array_1_0(self._empty)
        header["shape"] = (self.length, *self._empty.shape[1:])
        np.lib.format.write_array_header_1_0(self._file, header)


def _read(path: Path, identity: dict) -> Counts | None:
    """Return a plan's counts; None if it is missing or damaged."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        whole = manifest["identity"] == identity and manifest["files"] == _files(path)
        return Counts(**manifest["counts"]) if whole else None
    # A manifest that is broken in any way counts as missing, because making a plan again is always possible.
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _files(path: Path) -> dict[str, dict]:
    """Return size and `edges` per array. Hashing a whole plan with billions of rows would take minutes."""
    return {name: {"bytes": (path / name).stat().st_size, "edges": edges(path / name)} for name in (_RANGES, _ROWS)}
