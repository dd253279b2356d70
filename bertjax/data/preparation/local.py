"""The local runner: processes of one machine, and files that let a killed preparation resume.

An unfinished preparation also has the folders `text/` and `tokens/` (shards). A folder of kept shards serves later
preparations: a kept shard is named by all that decides it, so a corpus that has grown takes those of its first part.
"""

import contextlib
import dataclasses
import hashlib
import json
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from bertjax import storage
from bertjax.data import store
from bertjax.data.config import DataConfig
from bertjax.data.preparation import duplicates, reading, shards, workers
from bertjax.data.preparation.duplicates import Duplicates
from bertjax.data.preparation.reading import Reading
from bertjax.data.preparation.sample import Sample
from bertjax.data.preparation.shards import DamagedShard
from bertjax.data.preparation.steps import EncodedShard, ShardDocument, encode_shard
from bertjax.data.sources.bad import BadRecords
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import RunFailed, Unavailable, UserError

# Part of the names of kept shards; a new one if the same text is encoded in another way.
KEPT_VERSION = 2
# What splits and encodes text beside bertjax; a kept shard is for one version of each.
_LIBRARIES = "sentencepiece", "tokenizers"


class BadDocument(UserError):
    """A document holds no token, which only its encoding shows."""


@dataclasses.dataclass(frozen=True)
class ShardEncoder:
    """Encodes shards of text; pickled to the processes that do so.

    Attributes:
      folder: the unfinished preparation.
      splitter: see `sentences.split`.
      on_bad_document: `stop` or `skip` if a document holds no token.
      groups: (split, source) of each group.
      remedy: the end of the message about a document that holds no token.
      kept: folder in which shards are kept for later preparations; None to keep none.
    """

    folder: Path
    tokenizer: Tokenizer
    splitter: str
    on_bad_document: str
    groups: tuple[tuple[str, str], ...]
    remedy: str = "or set data.on_bad_document=skip, which continues with the shards that are encoded"
    kept: Path | None = None

    def __call__(self, index: int) -> tuple[list[tuple[int, str]], bool]:
        """Write a shard of tokens.

        Returns:
          The group and the error of each document that was skipped, and whether the shard had been kept.

        Raises:
          BadDocument: a document holds no token, and bad documents stop the preparation.
          DamagedShard: the text differs from what was written.
        """
        documents = shards.read_text(self.folder, index)
        is_duplicate = Duplicates(duplicates.path(self.folder)).contain([document.key for document in documents])
        left = [document for document, drop in zip(documents, is_duplicate, strict=True) if not drop]
        with self._kept_errors():
            place = self.kept / self._name(left) if self.kept else None
            found = _read_kept(place, store.token_dtype(self.tokenizer.vocab_size)) if place else None
        if found is None:
            shard = encode_shard(left, self._splits, self.tokenizer, self.splitter)
            if place:
                with self._kept_errors():
                    shards.write_tokens(place, shard)
        else:
            shard = found
        if shard.skipped and self.on_bad_document == "stop":
            raise BadDocument(f"{shard.skipped[0][1]}, {self.remedy}")
        shards.write_tokens(shards.tokens_path(self.folder, index), shard)
        return shard.skipped, found is not None

    @property
    def _splits(self) -> list[str]:
        """The split of each group."""
        return [split for split, _ in self.groups]

    def _name(self, documents: Sequence[ShardDocument]) -> str:
        """Return a hash of all that decides a shard of tokens."""
        groups = sorted({document.group for document in documents})
        decides = {
            "version": KEPT_VERSION,
            "libraries": [metadata.version(name) for name in _LIBRARIES],
            "unicode": unicodedata.unidata_version,
            "tokenizer": self.tokenizer.fingerprint,
            "splitter": self.splitter,
            "splits": {group: self._splits[group] for group in groups},
            "documents": [[document.id, document.group, len(document.text)] for document in documents],
        }
        digest = hashlib.sha256(json.dumps(decides).encode())
        for document in documents:
            digest.update(document.text)
        return digest.hexdigest()

    @contextlib.contextmanager
    def _kept_errors(self) -> Iterator[None]:
        """Name the folder of kept shards in an error of its disk. The preparation itself is not lost."""
        try:
            yield
        except OSError as error:
            failed = storage.user_error(error, f"cannot use --keep-shards={self.kept}", "name another folder")
            raise failed if isinstance(failed, RunFailed | Unavailable) else RunFailed(str(failed)) from error


def _read_kept(path: Path, token_dtype: np.dtype) -> EncodedShard | None:
    """Return a kept shard, None if there is none, or if it is damaged."""
    with contextlib.suppress(DamagedShard, FileNotFoundError):
        return shards.read_tokens(path, token_dtype)
    return None


@dataclasses.dataclass(frozen=True)
class Local:
    """Runs a preparation on this machine; see `building.Runner`.

    Attributes:
      kept: see `ShardEncoder`.
    """

    kept: Path | None = None

    def identity(self, partial: Path) -> dict[str, Any]:
        return {}

    def read(self, config: DataConfig, partial: Path) -> tuple[Reading, list[str]]:
        for name in ("text", "tokens"):
            (partial / name).mkdir()
        return reading.read(config, partial, Sample(config.tokenizer.sample_characters))

    def encode(
        self, config: DataConfig, partial: Path, read: Reading, trained: Tokenizer, token_dtype: np.dtype
    ) -> Iterator[EncodedShard]:
        _encode(config, partial, read, trained, self.kept)
        paths = (shards.tokens_path(partial, index) for index in range(len(read.shard_bytes)))
        return (shards.read_tokens(path, token_dtype) for path in paths)

    def clean(self, partial: Path) -> None:
        pass


def _encode(config: DataConfig, partial: Path, read: Reading, trained: Tokenizer, kept: Path | None) -> None:
    """Encode the shards that are not encoded yet."""
    indices = range(len(read.shard_bytes))
    done = {index for index in indices if shards.tokens_path(partial, index).exists()}
    for index in done:
        shards.check_tokens(partial, index)
        shards.text_path(partial, index).unlink(missing_ok=True)
    if done:
        print(f"resuming {partial}: {len(done)} of {len(indices)} shards are encoded", file=sys.stderr, flush=True)
    bad = BadRecords(config.on_bad_document, "documents")
    encoder = ShardEncoder(partial, trained, config.splitter, config.on_bad_document, read.groups, kept=kept)
    todo = [index for index in indices if index not in done]
    finished, reused = sum(read.shard_bytes[index] for index in done), 0
    with tqdm(
        total=sum(read.shard_bytes), initial=finished, desc="encoding", unit="B", unit_scale=True, disable=None
    ) as bar:
        for index, (skipped, was_kept) in workers.unordered(encoder, todo, workers.number(config.workers)):
            for group, message in skipped:
                bad.add(read.groups[group][1], UserError(message))
            shards.text_path(partial, index).unlink()
            reused += was_kept
            bar.update(read.shard_bytes[index])
    if kept:
        print(f"kept shards: {reused} of {len(todo)} were in {kept}, and {len(todo) - reused} were encoded", flush=True)
