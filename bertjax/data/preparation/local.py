"""The local runner: processes of one machine, and files that let a killed preparation resume.

An unfinished preparation also has the folders `text/` and `tokens/` (shards). A folder of kept shards serves later
preparations: a kept shard is named by all that decides it, so a corpus that has grown takes those of its first part.
"""

import contextlib
import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from bertjax.data import store
from bertjax.data.config import DataConfig
from bertjax.data.preparation import duplicates, reading, shards, workers
from bertjax.data.preparation.duplicates import Duplicates
from bertjax.data.preparation.reading import Reading
from bertjax.data.preparation.sample import Sample
from bertjax.data.preparation.shards import DamagedShard
from bertjax.data.preparation.steps import EncodedShard, encode_shard
from bertjax.data.sources.bad import BadRecords
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError

# Part of the names of kept shards; a new one if the same text is encoded in another way.
KEPT_VERSION = 1


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
        place = self.kept / self._name(index, is_duplicate) if self.kept else None
        found = _read_kept(place, store.token_dtype(self.tokenizer.vocab_size)) if place else None
        if found is None:
            left = [document for document, drop in zip(documents, is_duplicate, strict=True) if not drop]
            shard = encode_shard(left, [split for split, _ in self.groups], self.tokenizer, self.splitter)
            if place:
                shards.write_tokens(place, shard)
        else:
            shard = found
        if shard.skipped and self.on_bad_document == "stop":
            raise BadDocument(f"{shard.skipped[0][1]}, {self.remedy}")
        shards.write_tokens(shards.tokens_path(self.folder, index), shard)
        return shard.skipped, found is not None

    def _name(self, index: int, is_duplicate: np.ndarray) -> str:
        """Return a hash of all that decides a shard of tokens."""
        decides = KEPT_VERSION, self.tokenizer.fingerprint, self.splitter, self.groups, is_duplicate.tolist()
        digest = hashlib.sha256(json.dumps(decides).encode())
        digest.update(shards.text_path(self.folder, index).read_bytes())
        return digest.hexdigest()


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
