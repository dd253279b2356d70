"""Exact duplicates, found in bounded memory by sorting document digests on disk, and near-duplicates.

Near-duplicates: documents that share a bucket are connected, and one document per connected cluster stays. Buckets are
MinHash signatures (Broder 1997): similar texts share one with a known probability. Held-out documents always stay, and
then no training document in their cluster does. In a cluster without one, the longest text (in UTF-8) stays; ties go to
the lowest digest. The rule reads only content, so it depends neither on file order nor on document order.
"""

import contextlib
import dataclasses
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bertjax.data.config import NearDuplicates
from bertjax.data.preparation.steps import PACKED_BYTES, Key
from bertjax.data.random import mixed
from bertjax.data.text import ngrams
from bertjax.data.text.ngrams import are_among

# numpy compares byte strings in the order of packed keys.
PACKED_KEY = np.dtype(f"S{PACKED_BYTES}")
# A document on disk: both halves of its digest, packed key, group index, characters of text, and whether it is within
# `data.share`. Group and characters are for the ledger.
# The halves are big-endian, so a digest is written as it is, and the high half has its leading bits.
DOCUMENT = np.dtype(
    [("high", ">u8"), ("low", ">u8"), ("key", PACKED_KEY), ("group", "<u2"), ("characters", "<u8"), ("is_used", "?")]
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


# n-grams that are hashed at once: few enough that hashes and products stay in the cache of a core.
GRAMS_AT_ONCE = 1 << 15


def buckets(texts: Sequence[str], settings: NearDuplicates) -> np.ndarray:
    """Return a hash per text and bucket, uint64 [D, buckets]. Near-duplicates share at least one bucket.

    A bucket hashes `hashes` minima. Each minimum is taken over the text's n-grams after another 32-bit permutation:
    x -> a x + b modulo 2**32 with odd a. Two texts have an equal minimum with a probability that is the Jaccard
    similarity between their n-gram sets. A text without words is similar only to itself.
    """
    words, counts_D = ngrams.word_hashes(texts)
    grams, grams_D = ngrams.ngram_hashes(words, counts_D, settings.ngram)
    minima_DN = _minima((grams >> np.uint64(32)).astype(np.uint32), grams_D, settings.buckets * settings.hashes)
    minima_DBH = minima_DN.reshape(len(texts), settings.buckets, settings.hashes)
    result = np.zeros((len(texts), settings.buckets), np.uint64)
    for h in range(settings.hashes):
        # Chained, so a bucket depends on all of its minima: two texts share it only if all are equal.
        result = mixed(result ^ minima_DBH[:, :, h])
    # Their minima are all 0, so texts without words would form one big cluster.
    for d in np.flatnonzero(grams_D == 0):
        result[d] = int.from_bytes(hashlib.sha256(texts[d].encode()).digest()[:8], "little")
    return result


def _minima(grams: np.ndarray, grams_D: np.ndarray, hashes: int) -> np.ndarray:
    """Return minima by hash function over each text's n-grams: uint32 [D, hashes]."""
    # Fixed constants: signatures must be comparable between processes and runs.
    constants = mixed(np.arange(1, 2 * hashes + 1, dtype=np.uint64)).astype(np.uint32)
    # An odd factor has an inverse modulo 2**32, so no two values collide.
    factors, offsets = constants[:hashes] | np.uint32(1), constants[hashes:]
    minima = np.zeros((len(grams_D), hashes), np.uint32)
    ends_D = np.cumsum(grams_D)
    # Without empty texts: for an empty range `reduceat` returns an element of the next text.
    filled = np.flatnonzero(grams_D)
    first = 0
    while first < len(filled):
        # As many texts as fit into GRAMS_AT_ONCE, or a single longer one.
        start = ends_D[filled[first]] - grams_D[filled[first]]
        after = max(first + 1, int(np.searchsorted(ends_D[filled], start + GRAMS_AT_ONCE, side="right")))
        block = filled[first:after]
        starts = ends_D[block] - grams_D[block] - start
        here = grams[start : ends_D[block[-1]]]
        permuted = np.empty_like(here)
        for h in range(hashes):
            # Overflow is the modulo 2**32; numpy does not warn about it for arrays.
            np.multiply(here, factors[h], out=permuted)
            np.add(permuted, offsets[h], out=permuted)
            minima[block, h] = np.minimum.reduceat(permuted, starts)
        first = after
    return minima


BEGINNING = 96
LARGEST = 10


@dataclasses.dataclass(frozen=True)
class Clusters:
    """Near-duplicate clusters in a corpus.

    Attributes:
      number: how many clusters have at least two documents.
      dropped: packed keys of dropped documents, sorted.
      kept: per dropped document, the packed key of the document that stays instead.
      groups: per dropped document, its group index.
      largest: (documents, packed key and beginning of the one that stays), largest cluster first.
    """

    number: int
    dropped: np.ndarray
    kept: np.ndarray
    groups: np.ndarray
    largest: list[tuple[int, bytes, str]]


def document_dtype(buckets: int) -> np.dtype:
    """Return the dtype for document records on disk."""
    fixed = [("key", PACKED_KEY), ("digest", "S16"), ("group", "<u2"), ("bytes", "<u8"), ("beginning", f"S{BEGINNING}")]
    return np.dtype([*fixed, ("buckets", "<u8", (buckets,))])


def near_record(key: Key, digest: bytes, group: int, text: bytes, buckets_B: np.ndarray) -> bytes:
    """Return a document as bytes that `document_dtype` describes.

    Args:
      text: text in UTF-8.
    """
    size = len(text).to_bytes(8, "little")
    beginning = text[:BEGINNING].ljust(BEGINNING, b"\0")
    return key.packed() + digest + group.to_bytes(2, "little") + size + beginning + buckets_B.astype("<u8").tobytes()


def find_near(documents: Path, exact: np.ndarray, buckets: int, is_heldout: Sequence[bool]) -> Clusters:
    """Return the near-duplicates among documents that are not exact duplicates.

    Memory is about 40 bytes per document, 390 if all are in clusters. The signatures stay on disk.

    Args:
      documents: file with `document_dtype` records, in any order.
      exact: packed keys of exact duplicates, which are ignored; sorted.
      is_heldout: for each group, whether it is held out.
    """
    dtype = document_dtype(buckets)
    is_exact = [are_among(block["key"], exact) for block in blocks(documents, dtype)]
    is_used = ~np.concatenate([np.zeros(0, bool), *is_exact])
    labels = np.arange(np.count_nonzero(is_used), dtype=np.int32)
    # One bucket at a time is in memory: labels of clusters so far are the nodes of the next graph.
    for bucket in range(buckets):
        labels = _connected(labels, _bucket(documents, dtype, bucket, len(is_used))[is_used])
    sizes = np.bincount(labels)
    is_member = np.zeros(len(is_used), bool)
    is_member[is_used] = sizes[labels] > 1
    members = _selected(documents, dtype, is_member)
    return _clusters(members, labels[is_member[is_used]], np.array(is_heldout, bool))


def _bucket(documents: Path, dtype: np.dtype, bucket: int, size: int) -> np.ndarray:
    """Read one bucket for every document: uint64 [size]."""
    hashes, start = np.zeros(size, np.uint64), 0
    for block in blocks(documents, dtype):  # copied, as a view would keep all of the block
        hashes[start : start + len(block)] = block["buckets"][:, bucket]
        start += len(block)
    return hashes


def _connected(labels: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Merge clusters that contain documents with equal hashes: int32 [documents].

    Args:
      labels: cluster per document so far.
      hashes: uint64 [documents].
    """
    # Imported here: its import takes longer than that of all else in a worker, and only the merging process needs it.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # Sorting makes equal hashes adjacent, and edges between neighbors connect all of them.
    order = np.argsort(hashes)
    equal = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    if not len(equal):
        return labels
    first, second = labels[order[equal]], labels[order[equal + 1]]
    size = int(labels.max()) + 1
    # Only positions count: 256 equal edges sum to 0 in int8, but SciPy takes a stored 0 for an edge too.
    graph = coo_array((np.ones(len(first), np.int8), (first, second)), shape=(size, size))
    # The result has a label for each old cluster; the old labels spread it to the documents.
    return connected_components(graph, directed=False)[1][labels]


def _clusters(members: np.ndarray, labels: np.ndarray, is_heldout_G: np.ndarray) -> Clusters:
    """Choose which document stays in each cluster.

    Args:
      members: documents in clusters, `document_dtype` without buckets.
      labels: cluster per member.
    """
    stays = is_heldout_G[members["group"]] if len(members) else np.zeros(0, bool)
    # By cluster, then held-out documents, then the longest text, then the lowest digest: the first of a cluster stays.
    order = np.lexsort([members["digest"], np.iinfo(np.int64).max - members["bytes"].astype(np.int64), ~stays, labels])
    members, labels, stays = members[order], labels[order], stays[order]
    starts = np.flatnonzero(np.diff(labels, prepend=-1))
    sizes = np.diff(starts, append=len(labels))
    first = np.repeat(starts, sizes)
    # A held-out document stays even if another one is first in its cluster.
    is_dropped = (first != np.arange(len(members))) & ~stays
    by_key = np.flatnonzero(is_dropped)[np.argsort(members["key"][is_dropped])]
    largest = np.lexsort([members["digest"][starts], -sizes])[:LARGEST]
    return Clusters(
        number=len(starts),
        dropped=members["key"][by_key],
        kept=members["key"][first[by_key]],
        groups=members["group"][by_key],
        # Ignoring decoding errors: the beginning may be cut within a character.
        largest=[
            (int(sizes[c]), bytes(members["key"][starts[c]]), members["beginning"][starts[c]].decode(errors="ignore"))
            for c in largest
        ],
    )


def _selected(documents: Path, dtype: np.dtype, is_selected: np.ndarray) -> np.ndarray:
    """Read the selected documents without their buckets."""
    names = [name for name in dtype.names if name != "buckets"]
    parts, start = [np.zeros(0, np.dtype([(name, dtype[name]) for name in names]))], 0
    for block in blocks(documents, dtype):
        rows = np.flatnonzero(is_selected[start : start + len(block)])
        # Field by field: selecting several fields at once makes a view that keeps the buckets in memory.
        part = np.zeros(len(rows), parts[0].dtype)
        for name in names:
            part[name] = block[name][rows]
        parts.append(part)
        start += len(block)
    return np.concatenate(parts)
