"""Shards: what lies on disk between the passes, each a file that is there as a whole or not at all.

A shard of text holds a run of documents, and a shard of tokens what became of it. A run closes at `SHARD_BYTES` of text
or at the end of a longer document, whoever encodes it.
"""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path

from bertjax import storage
from bertjax.errors import RunFailed

SHARD_BYTES = 8 << 20


class Damaged(RunFailed):
    """A file of an unfinished preparation is not as it was written."""


def text_path(folder: Path, index: int) -> Path:
    """Where the text of a shard lies."""
    return folder / "text" / f"{index:06}"


def tokens_path(folder: Path, index: int) -> Path:
    """Where the tokens of a shard lie."""
    return folder / "tokens" / f"{index:06}"


def dropped_path(folder: Path) -> Path:
    """Where it stands which documents are duplicates: bool [documents] as .npy."""
    return folder / "dropped.npy"


def write(path: Path, header: dict, payload: Sequence[bytes]) -> None:
    """Writes a checksum, a header and bytes; a file under the name `path` is whole."""
    head = json.dumps(header, ensure_ascii=False).encode() + b"\n"
    checksum = zlib.crc32(head)
    for block in payload:
        checksum = zlib.crc32(block, checksum)
    with storage.whole_file(path) as file:  # the worker of a killed preparation may still write the same shard
        file.write(b"%08x\n" % checksum + head)
        file.writelines(payload)


def read(path: Path) -> tuple[dict, memoryview]:
    """Header and bytes of a shard.

    Raises:
      Damaged: the file is cut short or altered.
    """
    content = path.read_bytes()
    view = memoryview(content)
    if view[:9] != b"%08x\n" % zlib.crc32(view[9:]):
        raise Damaged(f"{path} is not as it was written; check the disk")
    end = content.index(b"\n", 9)
    return json.loads(content[9:end]), view[end + 1 :]


class TextWriter:
    """Writes documents as shards of text.

    Attributes:
      documents: how many were appended.
      sizes: bytes of text in each shard.
    """

    def __init__(self, folder: Path):
        """Starts with shard 0 under `folder`."""
        self._folder = folder
        self._waiting, self._texts, self._bytes = [], [], 0
        self.documents, self.sizes = 0, []

    def append(self, name: str, group: int, text: bytes) -> None:
        """Appends a document: its id, the index of its group, and its text in UTF-8."""
        self._waiting.append((name, group, len(text)))
        self._texts.append(text)
        self._bytes += len(text)
        self.documents += 1
        if self._bytes >= SHARD_BYTES:
            self.close()

    def close(self) -> None:
        """Writes what no shard holds yet."""
        if self._waiting:
            header = {"first": self.documents - len(self._waiting), "documents": self._waiting}
            write(text_path(self._folder, len(self.sizes)), header, self._texts)
            self.sizes.append(self._bytes)
            self._waiting, self._texts, self._bytes = [], [], 0
