"""Exact duplicates, found in bounded memory by sorting document digests on disk."""

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bertjax.data.preparation.steps import PACKED_BYTES, Key

# numpy compares byte strings in the order of packed keys.
PACKED_KEY = np.dtype(f"S{PACKED_BYTES}")
# A document on disk: both halves of its digest, packed key, group index, characters of text, and whether it is within
# `data.share`. Group and characters are for the ledger.
# The halves are big-endian, so a digest is written as it is, and the high half has its leading bits.
DOCUMENT = np.dtype(
    [
        ("high", ">u8"),
        ("low", ">u8"),
        ("key", PACKED_KEY),
        ("group", "<u2"),
        ("characters", "<u8"),
        ("is_used", "?"),
    ]
)
BUCKET_DOCUMENTS = 1 << 22
# Buckets that are written in one pass over the documents. Each is an open file.
BUCKETS_AT_ONCE = 256
DOCUMENTS_PER_READ = 1 << 16


def path(folder: Path) -> Path:
    """Return the path for the duplicates' keys in the unfinished preparation `folder`."""
    return folder / "duplicates.bin"


def fingerprint(folder: Path) -> str:
    """Hash the duplicates' keys with SHA-256; empty without such a file."""
    try:
        with open(path(folder), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return ""


def record(digest: bytes, key: Key, group: int, characters: int = 0, is_used: bool = True) -> bytes:
    """Return a document as bytes that `DOCUMENT` describes."""
    return digest + key.packed() + group.to_bytes(2, "little") + characters.to_bytes(8, "little") + bytes([is_used])


def find(documents: Path, duplicates: Path, groups: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Write the key of every document that equals an earlier one. The document with the lowest key is kept.

    Documents are first distributed to one file per bucket by leading digest bits. Then bucket after bucket is sorted.
    So memory is constant and time grows linearly with the corpus.

    Args:
      documents: file with `DOCUMENT` records, in any order.
      duplicates: output file; `load` reads it.
      groups: length of the results.

    Returns:
      Kept documents per group, and duplicates per group.
    """
    total = documents.stat().st_size // DOCUMENT.itemsize
    # The fewest bits with which a bucket has at most BUCKET_DOCUMENTS documents on average.
    bits = (max(0, total - 1) // BUCKET_DOCUMENTS).bit_length()
    kept_G, duplicates_G = np.zeros((2, groups), np.int64)
    with open(duplicates, "wb") as file:
        for entries in _buckets(documents, bits):
            # By digest, then by key: lexsort takes its most significant key last. A copy follows the original directly.
            entries = entries[np.lexsort([entries[name] for name in ("key", "low", "high")])]
            is_duplicate = np.zeros(len(entries), bool)
            is_duplicate[1:] = (entries["high"][1:] == entries["high"][:-1]) & (
                entries["low"][1:] == entries["low"][:-1]
            )
            kept_G += np.bincount(entries["group"][~is_duplicate], minlength=groups)
            duplicates_G += np.bincount(entries["group"][is_duplicate], minlength=groups)
            file.write(entries["key"][is_duplicate].tobytes())
    _sort(duplicates)
    return tuple(kept_G.tolist()), tuple(duplicates_G.tolist())


def add(duplicates: Path, keys: np.ndarray) -> None:
    """Add packed keys to the file that `find` wrote, and sort it again."""
    with open(duplicates, "ab") as file:
        file.write(keys.tobytes())
    _sort(duplicates)


def _sort(duplicates: Path) -> None:
    if duplicates.stat().st_size:
        keys = np.memmap(duplicates, PACKED_KEY, mode="r+")
        # In place, in the map: the keys need not fit into memory.
        keys.sort()
        keys.flush()


def load(duplicates: Path) -> np.ndarray:
    """Return the sorted keys of all dropped documents, as a memory map."""
    if not duplicates.stat().st_size:  # which cannot be mapped
        return np.zeros(0, PACKED_KEY)
    return np.memmap(duplicates, PACKED_KEY, mode="r")


def _buckets(documents: Path, bits: int) -> Iterator[np.ndarray]:
    """Yield the documents bucket by bucket. Digests in a bucket share their first `bits` bits."""
    if not bits:
        yield np.fromfile(documents, DOCUMENT)
        return
    for first in range(0, 1 << bits, BUCKETS_AT_ONCE):
        buckets = range(first, min(first + BUCKETS_AT_ONCE, 1 << bits))
        # In the folder of the preparation, because /tmp may be small or in memory. Such files have no name, so the
        # system removes them even after a kill.
        with contextlib.ExitStack() as stack:
            files = [
                stack.enter_context(tempfile.TemporaryFile(dir=documents.parent, prefix="bucket")) for _ in buckets
            ]
            for block in blocks(documents):
                places = (block["high"] >> np.uint64(64 - bits)).astype(np.int64) - first
                # Sorted by bucket, so one write per bucket. Documents of other passes sort before the first and after
                # the last edge.
                order = np.argsort(places, kind="stable")
                edges = np.searchsorted(places[order], np.arange(len(buckets) + 1))
                for file, start, stop in zip(files, edges[:-1], edges[1:], strict=True):
                    file.write(block[order[start:stop]].tobytes())
            for file in files:
                file.seek(0)
                yield np.frombuffer(file.read(), DOCUMENT)


def blocks(documents: Path, dtype: np.dtype = DOCUMENT) -> Iterator[np.ndarray]:
    """Read records from a file, block by block."""
    with open(documents, "rb") as file:
        while len(block := np.fromfile(file, dtype, DOCUMENTS_PER_READ)):
            yield block
