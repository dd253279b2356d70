"""Exact duplicates of documents, found with bounded memory among the digests of all documents on disk."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bertjax.data.preparation.steps import PACKED_BYTES, Key

# numpy compares strings of bytes as packed keys compare.
PACKED_KEY = np.dtype(f"S{PACKED_BYTES}")
# A document on disk: the two halves of its digest, its packed key, the index of its group, the length of its text in
# characters, and whether it is in `data.share`.
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
# Buckets that are written at once; each is an open file.
BUCKETS_AT_ONCE = 256
DOCUMENTS_PER_READ = 1 << 18


def path(folder: Path) -> Path:
    """Return the path of the keys of the duplicates of the unfinished preparation in `folder`."""
    return folder / "duplicates.bin"


def record(digest: bytes, key: Key, group: int, characters: int = 0, is_used: bool = True) -> bytes:
    """Return a document as `DOCUMENT`."""
    return digest + key.packed() + group.to_bytes(2, "little") + characters.to_bytes(8, "little") + bytes([is_used])


def find(documents: Path, duplicates: Path, groups: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Write the keys of all documents that equal an earlier one; the document with the lowest key is kept.

    Buckets of digests with the same leading bits are sorted one after the other, so memory does not grow with the
    number of documents. The documents are first divided into files, one a bucket, so time grows linearly.

    Args:
      documents: a file of `DOCUMENT`, in any order.
      duplicates: the file to write; `Duplicates` reads it.
      groups: number of groups.

    Returns:
      Documents of each group that are kept, and that are duplicates.
    """
    total = documents.stat().st_size // DOCUMENT.itemsize
    bits = (max(0, total - 1) // BUCKET_DOCUMENTS).bit_length()
    kept_G, duplicates_G = np.zeros((2, groups), np.int64)
    with open(duplicates, "wb") as file:
        for entries in _buckets(documents, bits):
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
    """Add packed keys to the file that `find` wrote."""
    with open(duplicates, "ab") as file:
        file.write(keys.tobytes())
    _sort(duplicates)


def _sort(duplicates: Path) -> None:
    if duplicates.stat().st_size:
        keys = np.memmap(duplicates, PACKED_KEY, mode="r+")
        keys.sort()
        keys.flush()


def are_among(packed: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return whether each packed key is one of `keys`, which ascend: bool [packed]."""
    if not len(keys):
        return np.zeros(len(packed), bool)
    places = np.minimum(np.searchsorted(keys, packed), len(keys) - 1)
    return keys[places] == packed


class Duplicates:
    """The keys that `find` wrote, as a memory map."""

    def __init__(self, path: Path):
        self._keys = np.zeros(0, PACKED_KEY)
        if path.stat().st_size:
            self._keys = np.memmap(path, PACKED_KEY, mode="r")

    def packed(self) -> Iterator[bytes]:
        """Yield the packed keys in the order of the corpus."""
        yield from map(bytes, self._keys)

    def __contains__(self, key: Key) -> bool:
        return bool(self.contain([key])[0])

    def contain(self, keys: Sequence[Key]) -> np.ndarray:
        """Return whether each document is a duplicate: bool [keys]."""
        return self.contain_packed(np.array([key.packed() for key in keys], PACKED_KEY))

    def contain_packed(self, packed: np.ndarray) -> np.ndarray:
        """Return whether each document is a duplicate: bool [keys].

        Args:
          packed: keys as `PACKED_KEY`.
        """
        return are_among(packed, self._keys)


def _buckets(documents: Path, bits: int) -> Iterator[np.ndarray]:
    """Yield the documents of each bucket, those whose digests start with the same `bits` bits, as `DOCUMENT`."""
    if not bits:
        yield np.fromfile(documents, DOCUMENT)
        return
    for first in range(0, 1 << bits, BUCKETS_AT_ONCE):
        buckets = range(first, min(first + BUCKETS_AT_ONCE, 1 << bits))
        with contextlib.ExitStack() as stack:
            files = [
                stack.enter_context(tempfile.TemporaryFile(dir=documents.parent, prefix="bucket")) for _ in buckets
            ]
            for block in blocks(documents):
                places = (block["high"] >> np.uint64(64 - bits)).astype(np.int64) - first
                order = np.argsort(places, kind="stable")
                edges = np.searchsorted(places[order], np.arange(len(buckets) + 1))
                for file, start, stop in zip(files, edges[:-1], edges[1:], strict=True):
                    file.write(block[order[start:stop]].tobytes())
            for file in files:
                file.seek(0)
                yield np.frombuffer(file.read(), DOCUMENT)


def blocks(documents: Path) -> Iterator[np.ndarray]:
    """Yield the documents of a file as `DOCUMENT`, some at a time."""
    with open(documents, "rb") as file:
        while len(block := np.fromfile(file, DOCUMENT, DOCUMENTS_PER_READ)):
            yield block
