"""The local runner: worker processes on one machine, resumable after a kill.

Its unfinished preparations also have the folders `reading/` (pieces, until the first pass is complete), `text/` and
`tokens/` (shards). Kept shards serve later preparations. Each is named by a hash over everything that determines its
content, so a grown corpus reuses its old shards.
"""

import contextlib
import dataclasses
import hashlib
import json
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath
from tqdm import tqdm

from bertjax.data.config import DataConfig
from bertjax.data.preparation import duplicates, pieces, reading, shards, workers
from bertjax.data.preparation.duplicates import PACKED_KEY
from bertjax.data.preparation.pieces import PartReader, Piece
from bertjax.data.preparation.reading import Reading, Source
from bertjax.data.preparation.shards import DamagedShard
from bertjax.data.preparation.steps import EncodedShard, ShardDocument, encode_shard
from bertjax.data.sources.base import BadRecords
from bertjax.data.text.ngrams import are_among
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime import storage
from bertjax.runtime.errors import RunFailed, Unavailable, UserError

# Part of every kept shard's name. Raise it if the same text is encoded differently.
KEPT_VERSION = 3
# Folder of the pieces within an unfinished preparation.
PIECES = "reading"
# Libraries that change how text is split and encoded. A kept shard is valid for one version of each.
_LIBRARIES = "sentencepiece", "tokenizers"


class BadDocument(UserError):
    """A document without a token. Only encoding reveals it, perhaps after hours."""


@dataclasses.dataclass(frozen=True)
class ShardEncoder:
    """Encodes one text shard. Pickled to worker processes.

    Attributes:
      folder: the unfinished preparation.
      splitter: see `sentences.split`.
      on_bad_document: `stop` or `skip` at a document without a token.
      groups: (split, source) per group.
      remedy: remedy in the error message for documents without a token.
      kept: folder for kept shards; None to keep none.
    """

    folder: Path
    tokenizer: Tokenizer
    splitter: str
    on_bad_document: str
    groups: tuple[tuple[str, str], ...]
    remedy: str = "or set data.on_bad_document=skip, which continues with the shards that are encoded"
    kept: Path | None = None

    def __call__(self, index: int) -> tuple[list[tuple[int, str]], bool]:
        """Write a token shard.

        Returns:
          `EncodedShard.skipped`, and whether a kept shard was used.

        Raises:
          BadDocument: a document holds no token, and bad documents stop the preparation.
          DamagedShard: the text has changed since it was written.
        """
        documents = shards.read_text(self.folder, index)
        keys = np.array([document.key.packed() for document in documents], PACKED_KEY)
        is_duplicate = are_among(keys, duplicates.load(duplicates.path(self.folder)))
        left = [document for document, drop in zip(documents, is_duplicate, strict=True) if not drop]
        with self._kept_errors():
            groups = sorted({document.group for document in left})
            place = self.kept / self._name(left, groups) if self.kept else None
            found = _read_kept(place, self.tokenizer) if place else None
        # Kept shards number their groups locally, because adding a source to the corpus renumbers its groups.
        renamed = [document._replace(group=groups.index(document.group)) for document in left]
        splits = [self.groups[group][0] for group in groups]
        shard = found or encode_shard(renamed, splits, self.tokenizer, self.splitter)
        if place and not found:
            with self._kept_errors():
                shards.write_tokens(place, shard)
        # Kept and new shards number their groups locally; the store needs the numbers of this corpus.
        shard = shard.with_groups(groups)
        # Only after the kept shard is written, so a second attempt with `skip` reuses it.
        if shard.skipped and self.on_bad_document == "stop":
            raise BadDocument(f"{shard.skipped[0][1]}, {self.remedy}")
        shards.write_tokens(shards.tokens_path(self.folder, index), shard)
        return shard.skipped, found is not None

    def _name(self, documents: Sequence[ShardDocument], groups: Sequence[int]) -> str:
        """Hash everything that determines a token shard."""
        decides = {
            "version": KEPT_VERSION,
            "libraries": [metadata.version(name) for name in _LIBRARIES],
            "unicode": unicodedata.unidata_version,
            "tokenizer": self.tokenizer.fingerprint,
            "splitter": self.splitter,
            "splits": [self.groups[group][0] for group in groups],
            # With lengths, because the texts are hashed without separators: "ab", "c" and "a", "bc" must differ.
            "documents": [[document.id, groups.index(document.group), len(document.text)] for document in documents],
        }
        digest = hashlib.sha256(json.dumps(decides).encode())
        for document in documents:
            digest.update(document.text)
        return digest.hexdigest()

    @contextlib.contextmanager
    def _kept_errors(self) -> Iterator[None]:
        """Name the kept shards' folder in disk errors, and make them RunFailed, which keeps the preparation."""
        try:
            yield
        except OSError as error:
            failed = storage.user_error(error, f"cannot use --keep-shards={self.kept}", "name another folder")
            raise failed if isinstance(failed, RunFailed | Unavailable) else RunFailed(str(failed)) from error


def _read_kept(path: Path, tokenizer: Tokenizer) -> EncodedShard | None:
    """Return a kept shard; None if it is missing or damaged."""
    with contextlib.suppress(DamagedShard):
        return shards.read_tokens(path, tokenizer)
    return None


@dataclasses.dataclass(frozen=True)
class Local:
    """Runs the steps on this machine; see `prepare.Runner`.

    Attributes:
      kept: see `ShardEncoder`.
    """

    kept: Path | None = None

    def identity(self, partial: Path) -> dict[str, Any]:
        return {"pieces": pieces.FORMAT_VERSION}

    def read(self, config: DataConfig, partial: Path) -> Reading:
        all_sources, work = reading.sources_of(config), epath.Path(partial / PIECES)
        corpus = pieces.pieces_of(all_sources)
        _read(config, all_sources, corpus, work)
        read = pieces.merged(config, partial, all_sources, corpus, work)
        _move_texts(partial, corpus, Path(work))
        return read

    def encode(self, config: DataConfig, partial: Path, read: Reading, trained: Tokenizer) -> Iterator[EncodedShard]:
        # Not before: `reading.json` is on disk now, so a crash no longer needs the pieces.
        shutil.rmtree(partial / PIECES, ignore_errors=True)
        _encode(config, partial, read, trained, self.kept)
        shutil.rmtree(partial / "text", ignore_errors=True)
        # Shards are opened one by one while they are assembled, so only one of them is in memory.
        paths = (shards.tokens_path(partial, index) for index in range(len(read.shard_bytes)))
        return (shards.read_tokens(path, trained) for path in paths)

    def clean(self, partial: Path) -> None:
        pass


def _bar(what: str, total: int, finished: int) -> tqdm:
    """Return a progress bar in bytes."""
    return tqdm(total=total, initial=finished, desc=what, unit="B", unit_scale=True, disable=None)


def _read(config: DataConfig, all_sources: list[Source], corpus: list[Piece], work: epath.Path) -> None:
    """Read unfinished pieces, one per process."""
    # Remove drafts of killed workers, or a machine that is preempted again and again would fill its disk. Rename them
    # first, so a worker that outlives its preparation for a moment cannot publish a half removed folder.
    for draft in Path(work).glob(".*"):
        removed = draft.rename(draft.with_name(f"{draft.name}.removed"))
        shutil.rmtree(removed, ignore_errors=True)
    sizes = [sum(part.size for part in all_sources[piece.source].parts[piece.first : piece.stop]) for piece in corpus]
    todo = [i for i, piece in enumerate(corpus) if not (work / pieces.folder_name(piece) / pieces.SEAL).exists()]
    if done := len(corpus) - len(todo):
        print(f"resuming {work.parent}: {done} of {len(corpus)} pieces are read", file=sys.stderr, flush=True)
    processes = workers.number(config.workers)
    reader = PartReader(config, all_sources, corpus, work)
    with _bar("reading", sum(sizes), sum(sizes) - sum(sizes[i] for i in todo)) as bar:
        if min(processes, len(todo)) > 1:
            for number, _ in workers.unordered(reader, todo, processes):
                bar.update(sizes[number])
            return
        # In this process, the bar shows how far each piece is.
        reader = dataclasses.replace(reader, on_read=bar.update)
        for number in todo:
            reader(number)


def _move_texts(partial: Path, corpus: list[Piece], work: Path) -> None:
    """Move every piece's text shards to `shards.text_path`, numbered through the corpus.

    After a kill it continues with the shards that were not moved yet.
    """
    for name in ("text", "tokens"):
        (partial / name).mkdir(exist_ok=True)
    index = 0
    for piece in corpus:
        folder = work / pieces.folder_name(piece)
        for number in range(len(pieces.read_seal(epath.Path(folder))["shard_bytes"])):
            # Missing only if it was moved before a kill; its number is still counted.
            if (path := shards.text_path(folder, number)).exists():
                path.replace(shards.text_path(partial, index))
            index += 1


def _encode(config: DataConfig, partial: Path, read: Reading, trained: Tokenizer, kept: Path | None) -> None:
    """Encode all shards that have no token shard yet."""
    indices = range(len(read.shard_bytes))
    done = {index for index in indices if shards.tokens_path(partial, index).exists()}
    # Checked before the rest is encoded: damage means starting from scratch, and better now than after hours.
    for index in done:
        shards.read(shards.tokens_path(partial, index))
    if done:
        print(f"resuming {partial}: {len(done)} of {len(indices)} shards are encoded", file=sys.stderr, flush=True)
    bad = BadRecords(config.on_bad_document, "documents")
    encoder = ShardEncoder(partial, trained, config.splitter, config.on_bad_document, read.groups, kept=kept)
    todo = [index for index in indices if index not in done]
    finished, reused = sum(read.shard_bytes[index] for index in done), 0
    with _bar("encoding", sum(read.shard_bytes), finished) as bar:
        for index, (skipped, was_kept) in workers.unordered(encoder, todo, workers.number(config.workers)):
            for group, message, _ in skipped:
                bad.add(read.groups[group][1], UserError(message))
            reused += was_kept
            bar.update(read.shard_bytes[index])
    if kept:
        print(f"kept shards: {reused} of {len(todo)} were in {kept}, and {len(todo) - reused} were encoded", flush=True)
