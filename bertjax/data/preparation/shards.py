"""Shards: the files between the two passes, each complete or absent.

A text shard holds consecutive documents from one source; a token shard holds the same documents, encoded. A shard ends
after `SHARD_BYTES` of text or at the end of its piece, which never spans two sources. So a growing source leaves all
other shards unchanged.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bertjax.data.preparation.steps import LENGTH, EncodedShard, Key, ShardDocument
from bertjax.data.store import SPLITS, token_dtype
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime import storage
from bertjax.runtime.errors import RunFailed

SHARD_BYTES = 8 << 20


class DamagedShard(RunFailed):
    """A file in an unfinished preparation has changed since it was written."""


def text_path(folder: Path, index: int) -> Path:
    """Return the path for text shard `index` in the unfinished preparation `folder`."""
    return folder / "text" / f"{index:06}"


def tokens_path(folder: Path, index: int) -> Path:
    """Return the path for token shard `index` in the unfinished preparation `folder`."""
    return folder / "tokens" / f"{index:06}"


def write_texts(folder: Path, documents: Iterable[ShardDocument]) -> tuple[int, ...]:
    """Write documents, whose keys ascend, as text shards and return the text bytes per shard."""
    sizes = []
    for index, run in enumerate(_runs(documents)):
        texts = [document.text for document in run]
        header = {"documents": [[*document.key, document.id, document.group, len(document.text)] for document in run]}
        _write(text_path(folder, index), header, texts)
        sizes.append(sum(map(len, texts)))
    return tuple(sizes)


def _runs(documents: Iterable[ShardDocument]) -> Iterator[list[ShardDocument]]:
    """Yield documents shard by shard."""
    run, size = [], 0
    for document in documents:
        # A document is never cut, so the last one of a shard may exceed the limit by far.
        if run and (size >= SHARD_BYTES or document.key.source != run[-1].key.source):
            yield run
            run, size = [], 0
        run.append(document)
        size += len(document.text)
    if run:
        yield run


def read_text(folder: Path, index: int) -> list[ShardDocument]:
    """Return the documents in a text shard. Their texts are views into one buffer.

    Raises:
      DamagedShard: the file is missing, cut short or altered.
    """
    header, payload = read(text_path(folder, index))
    documents, start = [], 0
    for *key, name, group, size in header["documents"]:
        documents.append(ShardDocument(Key(*key), name, group, payload[start : start + size]))
        start += size
    return documents


def write_tokens(path: Path, shard: EncodedShard) -> None:
    """Write a token shard: a header with counts and sizes, then the arrays, split by split."""
    header = {
        "counts": shard.counts,
        "longest": shard.longest,
        "skipped": shard.skipped,
        "sizes": {split: [len(array) for array in arrays] for split, arrays in shard.arrays.items()},
    }
    arrays = [array for arrays in shard.arrays.values() for array in arrays]
    # Empty arrays are left out, because `memoryview.cast` rejects them.
    _write(path, header, [memoryview(array).cast("B") for array in arrays if len(array)])


def read_tokens(path: Path, tokenizer: Tokenizer) -> EncodedShard:
    """Return a token shard that a tokenizer has encoded.

    Raises:
      DamagedShard: the file is cut short or altered.
    """
    header, payload = read(path)
    splits = {}
    for split in SPLITS:
        arrays = []
        for size, dtype in zip(
            header["sizes"][split], (token_dtype(tokenizer.vocab_size), LENGTH, LENGTH), strict=True
        ):
            arrays.append(np.frombuffer(payload[: size * dtype.itemsize], dtype))
            payload = payload[size * dtype.itemsize :]
        splits[split] = tuple(arrays)
    return EncodedShard(
        counts={int(group): counts for group, counts in header["counts"].items()},
        longest=[tuple(entry) for entry in header["longest"]],
        skipped=[tuple(entry) for entry in header["skipped"]],
        arrays=splits,
    )


def _write(path: Path, header: dict, payload: Sequence[bytes | memoryview]) -> None:
    """Write a CRC-32 over everything after it, a JSON header line, and the payload."""
    head = json.dumps(header, ensure_ascii=False).encode() + b"\n"
    # A CRC is enough: it guards against torn writes and bad disks, not against an attacker.
    checksum = zlib.crc32(head)
    for block in payload:
        checksum = zlib.crc32(block, checksum)
    with storage.whole_file(path) as file:  # a worker of a killed preparation may still write the same shard
        file.write(b"%08x\n" % checksum + head)
        file.writelines(payload)


def read(path: Path) -> tuple[dict, memoryview]:
    """Read a shard's header and payload.

    Raises:
      DamagedShard: it is missing, cut short or altered.
    """
    try:
        content = storage.read_bytes(path)
    except FileNotFoundError:  # cleanup jobs remove old files, even while a preparation is only paused
        raise DamagedShard(f"{path} is missing, which was written; check the disk") from None
    view = memoryview(content)
    # 8 hexadecimal digits and a line end.
    if view[:9] != b"%08x\n" % zlib.crc32(view[9:]):
        raise DamagedShard(f"{path} differs from what was written; check the disk")
    # JSON escapes line ends within strings, so the first one ends the header.
    end = content.index(b"\n", 9)
    return json.loads(content[9:end]), view[end + 1 :]
