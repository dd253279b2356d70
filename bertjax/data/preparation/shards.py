"""Shards: the files between the two passes, each complete or absent.

A shard of text holds consecutive documents of one source, and a shard of tokens the same documents encoded. Whichever
process encodes it, a shard ends at `SHARD_BYTES` of text, at the end of a longer document or at the end of the source.
So a source that has grown leaves the shards of the others as they were.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bertjax import storage
from bertjax.data.preparation.steps import LENGTH, EncodedShard, Key, ShardDocument
from bertjax.data.store import SPLITS
from bertjax.errors import RunFailed

SHARD_BYTES = 8 << 20


class DamagedShard(RunFailed):
    """A file of an unfinished preparation differs from what was written."""


def text_path(folder: Path, index: int) -> Path:
    """Return the path of a shard of text of the unfinished preparation in `folder`."""
    return folder / "text" / f"{index:06}"


def tokens_path(folder: Path, index: int) -> Path:
    """Return the path of a shard of tokens of the unfinished preparation in `folder`."""
    return folder / "tokens" / f"{index:06}"


def write_texts(folder: Path, documents: Iterable[ShardDocument]) -> tuple[int, ...]:
    """Write documents as shards of text and return the bytes of text in each shard.

    Raises:
      RunFailed: the keys of the documents do not ascend. Duplicates are dropped by key, so both of two documents with
        one key would be dropped.
    """
    sizes = []
    for index, run in enumerate(_runs(_ascending(documents))):
        texts = [document.text for document in run]
        header = {"documents": [[*document.key, document.id, document.group, len(document.text)] for document in run]}
        _write(text_path(folder, index), header, texts)
        sizes.append(sum(map(len, texts)))
    return tuple(sizes)


def _ascending(documents: Iterable[ShardDocument]) -> Iterator[ShardDocument]:
    before = None
    for document in documents:
        if before and document.key <= before.key:
            raise RunFailed(
                f"documents {before.id} and {document.id} have the keys {tuple(before.key)} and {tuple(document.key)}, "
                "which do not ascend; no store is made: this is a fault of bertjax, report it"
            )
        before = document
        yield document


def _runs(documents: Iterable[ShardDocument]) -> Iterator[list[ShardDocument]]:
    """Yield the documents of each shard."""
    run, size = [], 0
    for document in documents:
        if run and (size >= SHARD_BYTES or document.key.source != run[-1].key.source):
            yield run
            run, size = [], 0
        run.append(document)
        size += len(document.text)
    if run:
        yield run


def read_text(folder: Path, index: int) -> list[ShardDocument]:
    """Return the documents of a shard of text.

    Raises:
      DamagedShard: the file is cut short or altered.
    """
    header, payload = _read(text_path(folder, index))
    documents, start = [], 0
    for *key, name, group, size in header["documents"]:
        documents.append(ShardDocument(Key(*key), name, group, payload[start : start + size]))
        start += size
    return documents


def write_tokens(path: Path, shard: EncodedShard) -> None:
    """Write a shard of tokens: a header with counts and sizes, then the arrays, split by split."""
    header = {
        "counts": shard.counts,
        "longest": shard.longest,
        "skipped": shard.skipped,
        "sizes": {split: [len(array) for array in arrays] for split, arrays in shard.arrays.items()},
    }
    arrays = [array for arrays in shard.arrays.values() for array in arrays]
    _write(path, header, [memoryview(array).cast("B") for array in arrays if len(array)])


def read_tokens(path: Path, token_dtype: np.dtype) -> EncodedShard:
    """Return a shard of tokens.

    Raises:
      DamagedShard: the file is cut short or altered.
    """
    header, payload = _read(path)
    splits = {}
    for split in SPLITS:
        arrays = []
        for size, dtype in zip(header["sizes"][split], (token_dtype, LENGTH, LENGTH), strict=True):
            arrays.append(np.frombuffer(payload[: size * dtype.itemsize], dtype))
            payload = payload[size * dtype.itemsize :]
        splits[split] = tuple(arrays)
    return EncodedShard(
        counts={int(group): counts for group, counts in header["counts"].items()},
        longest=[tuple(entry) for entry in header["longest"]],
        skipped=[tuple(entry) for entry in header["skipped"]],
        arrays=splits,
    )


def check_tokens(folder: Path, index: int) -> None:
    """Raise `DamagedShard` if a shard of tokens is cut short or altered."""
    _read(tokens_path(folder, index))


def _write(path: Path, header: dict, payload: Sequence[bytes | memoryview]) -> None:
    """Write a checksum, a header and bytes."""
    head = json.dumps(header, ensure_ascii=False).encode() + b"\n"
    checksum = zlib.crc32(head)
    for block in payload:
        checksum = zlib.crc32(block, checksum)
    with storage.whole_file(path) as file:  # a worker of a killed preparation may still write the same shard
        file.write(b"%08x\n" % checksum + head)
        file.writelines(payload)


def _read(path: Path) -> tuple[dict, memoryview]:
    content = storage.read_bytes(path)
    view = memoryview(content)
    if view[:9] != b"%08x\n" % zlib.crc32(view[9:]):
        raise DamagedShard(f"{path} differs from what was written; check the disk")
    end = content.index(b"\n", 9)
    return json.loads(content[9:end]), view[end + 1 :]
