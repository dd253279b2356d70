"""Near-duplicates: documents that share a bucket are connected, and one document per connected cluster stays.

Held-out documents always stay, and then no training document in their cluster does. In a cluster without one, the
longest text (in UTF-8) stays; ties go to the lowest digest. The rule reads only content, so it depends neither on file
order nor on document order.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bertjax.data.preparation.duplicates import PACKED_KEY, Duplicates
from bertjax.data.preparation.steps import Key

BEGINNING = 96
DOCUMENTS_PER_READ = 1 << 16
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


def record(key: Key, digest: bytes, group: int, text: bytes, buckets_B: np.ndarray) -> bytes:
    """Return a document as bytes that `document_dtype` describes.

    Args:
      text: text in UTF-8.
    """
    size = len(text).to_bytes(8, "little")
    beginning = text[:BEGINNING].ljust(BEGINNING, b"\0")
    return key.packed() + digest + group.to_bytes(2, "little") + size + beginning + buckets_B.astype("<u8").tobytes()


def find(documents: Path, exact: Duplicates, buckets: int, is_heldout: Sequence[bool]) -> Clusters:
    """Return the near-duplicates among documents that are not exact duplicates.

    Memory is about 40 bytes per document, 390 if all are in clusters. The signatures stay on disk.

    Args:
      documents: file with `document_dtype` records, in any order.
      exact: exact duplicates, which are ignored.
      is_heldout: for each group, whether it is held out.
    """
    dtype = document_dtype(buckets)
    is_exact = [exact.contain_packed(block["key"]) for block in _blocks(documents, dtype)]
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
    for block in _blocks(documents, dtype):  # copied, as a view would keep all of the block
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
    for block in _blocks(documents, dtype):
        rows = np.flatnonzero(is_selected[start : start + len(block)])
        # Field by field: selecting several fields at once makes a view that keeps the buckets in memory.
        part = np.zeros(len(rows), parts[0].dtype)
        for name in names:
            part[name] = block[name][rows]
        parts.append(part)
        start += len(block)
    return np.concatenate(parts)


def _blocks(documents: Path, dtype: np.dtype) -> Iterator[np.ndarray]:
    with open(documents, "rb") as file:
        while len(block := np.fromfile(file, dtype, DOCUMENTS_PER_READ)):
            yield block
