"""The local runner: processes of one machine, and files that let a killed preparation resume.

An unfinished preparation also has the folders `text/` and `tokens/` (shards).
"""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from bertjax.data.config import DataConfig
from bertjax.data.preparation import duplicates, reading, shards, workers
from bertjax.data.preparation.duplicates import Duplicates
from bertjax.data.preparation.reading import Reading
from bertjax.data.preparation.sample import Sample
from bertjax.data.preparation.steps import EncodedShard, encode_shard
from bertjax.data.sources.bad import BadRecords
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError


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
    """

    folder: Path
    tokenizer: Tokenizer
    splitter: str
    on_bad_document: str
    groups: tuple[tuple[str, str], ...]
    remedy: str = "or set data.on_bad_document=skip, which continues with the shards that are encoded"

    def __call__(self, index: int) -> list[tuple[int, str]]:
        """Write a shard of tokens and return the group and the error of each document that was skipped.

        Raises:
          BadDocument: a document holds no token, and bad documents stop the preparation.
          DamagedShard: the text differs from what was written.
        """
        documents = shards.read_text(self.folder, index)
        is_duplicate = Duplicates(duplicates.path(self.folder)).contain([document.key for document in documents])
        kept = [document for document, drop in zip(documents, is_duplicate, strict=True) if not drop]
        shard = encode_shard(kept, [split for split, _ in self.groups], self.tokenizer, self.splitter)
        if shard.skipped and self.on_bad_document == "stop":
            raise BadDocument(f"{shard.skipped[0][1]}, {self.remedy}")
        shards.write_tokens(self.folder, index, shard)
        return shard.skipped


@dataclasses.dataclass(frozen=True)
class Local:
    """Runs a preparation on this machine; see `building.Runner`."""

    def identity(self, partial: Path) -> dict[str, Any]:
        return {}

    def read(self, config: DataConfig, partial: Path) -> tuple[Reading, list[str]]:
        for name in ("text", "tokens"):
            (partial / name).mkdir()
        return reading.read(config, partial, Sample(config.tokenizer.sample_characters))

    def encode(
        self, config: DataConfig, partial: Path, read: Reading, trained: Tokenizer, token_dtype: np.dtype
    ) -> Iterator[EncodedShard]:
        _encode(config, partial, read, trained)
        return (shards.read_tokens(partial, index, token_dtype) for index in range(len(read.shard_bytes)))

    def clean(self, partial: Path) -> None:
        pass


def _encode(config: DataConfig, partial: Path, read: Reading, trained: Tokenizer) -> None:
    """Encode the shards that are not encoded yet."""
    indices = range(len(read.shard_bytes))
    done = {index for index in indices if shards.tokens_path(partial, index).exists()}
    for index in done:
        shards.check_tokens(partial, index)
        shards.text_path(partial, index).unlink(missing_ok=True)
    if done:
        print(f"resuming {partial}: {len(done)} of {len(indices)} shards are encoded", file=sys.stderr, flush=True)
    bad = BadRecords(config.on_bad_document, "documents")
    encoder = ShardEncoder(partial, trained, config.splitter, config.on_bad_document, read.groups)
    todo = [index for index in indices if index not in done]
    finished = sum(read.shard_bytes[index] for index in done)
    with tqdm(
        total=sum(read.shard_bytes), initial=finished, desc="encoding", unit="B", unit_scale=True, disable=None
    ) as bar:
        for index, skipped in workers.unordered(encoder, todo, workers.number(config.workers)):
            for group, message in skipped:
                bad.add(read.groups[group][1], UserError(message))
            shards.text_path(partial, index).unlink()
            bar.update(read.shard_bytes[index])
