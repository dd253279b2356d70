"""Exact duplicates of documents, found with bounded memory among the digests of all documents on disk."""

import hashlib
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np

# One document on disk: the two halves of its digest and the index of its group.
DOCUMENT = np.dtype([("high", ">u8"), ("low", ">u8"), ("group", "<u2")])
BUCKET_DOCUMENTS = 1 << 22
READ_AT_ONCE = 1 << 18


def digest_of(text: str) -> bytes:
    """16 bytes for the content of a document: the first half of the SHA-256 of its NFC form in UTF-8."""
    return hashlib.sha256(unicodedata.normalize("NFC", text).encode()).digest()[:16]


def record(digest: bytes, group: int) -> bytes:
    """A document as `DOCUMENT`."""
    return digest + group.to_bytes(2, "little")


def drop(documents: Path, dropped: Path, groups: int) -> tuple[np.ndarray, tuple[int, ...], tuple[int, ...]]:
    """Marks each document that equals an earlier one; the first in order stays.

    Buckets of digests with the same leading bits are sorted one after the other, so memory does not follow their
    number.

    Args:
      documents: a file of `DOCUMENT`.
      dropped: where the marks go as .npy: bool [documents].
      groups: how many groups there are.

    Returns:
      The marks, how many documents of each group stay, and how many are dropped.
    """
    total = documents.stat().st_size // DOCUMENT.itemsize
    marks = np.lib.format.open_memmap(dropped, "w+", bool, (total,))
    bits = (max(0, total - 1) // BUCKET_DOCUMENTS).bit_length()
    for bucket in range(1 << bits):
        ordinals, high, low = _bucket(documents, bucket, bits)
        order = np.lexsort((low, high))  # stable: copies stay in the order of the corpus
        high, low = high[order], low[order]
        marks[ordinals[order[1:][(high[1:] == high[:-1]) & (low[1:] == low[:-1])]]] = True
    marks.flush()
    kept_G, dropped_G = np.zeros((2, groups), np.int64)
    for start, found in _read(documents):
        is_dropped = marks[start : start + len(found)]
        kept_G += np.bincount(found["group"][~is_dropped], minlength=groups)
        dropped_G += np.bincount(found["group"][is_dropped], minlength=groups)
    return marks, tuple(kept_G.tolist()), tuple(dropped_G.tolist())


def _bucket(documents: Path, bucket: int, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ordinals and digests of the documents whose digests begin with the `bits` bits of `bucket`."""
    ordinals, high, low = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    for start, found in _read(documents):
        inside = np.arange(len(found))
        if bits:
            inside = np.flatnonzero(found["high"] >> np.uint64(64 - bits) == bucket)
        ordinals.append(start + inside)
        high.append(found["high"][inside].astype(np.uint64))
        low.append(found["low"][inside].astype(np.uint64))
    return np.concatenate(ordinals), np.concatenate(high), np.concatenate(low)


def _read(documents: Path) -> Iterator[tuple[int, np.ndarray]]:
    start = 0
    with open(documents, "rb") as file:
        while len(found := np.fromfile(file, DOCUMENT, READ_AT_ONCE)):
            yield start, found
            start += len(found)
