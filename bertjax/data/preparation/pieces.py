"""First pass, piece by piece. A piece is a run of consecutive files that one process reads.

Any process may read any piece, in any order, even twice. The result is a folder with `documents.bin`, `near.bin`,
`dropped.jsonl.gz`, `sample.bin`, `text/` and, written last, `part.json`. A resumed preparation skips finished pieces.
`merged` combines the pieces as if one process had read the whole corpus. The store depends neither on how many
processes read it nor on the cuts.
"""

import contextlib
import dataclasses
import gzip
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath

from bertjax.data import remote
from bertjax.data.config import DataConfig
from bertjax.data.preparation import duplicates, reading
from bertjax.data.preparation import sample as sampling
from bertjax.data.preparation.cleaning import NAME as DROPPED
from bertjax.data.preparation.cleaning import READ, SKIPPED, Ledger, cleaned
from bertjax.data.preparation.reading import Reading, Source
from bertjax.data.preparation.sample import Sample, shares_of
from bertjax.data.sources import OnRead
from bertjax.data.sources.base import LISTED, MIB, BadRecords, open_file
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError

# Version of the files of a piece, and of where a corpus is cut into pieces.
FORMAT_VERSION = 2
SEAL, _SAMPLE = "part.json", "sample.bin"
# A piece ends at the first file boundary after this many bytes, a power of two, so small files are read together. A
# small source has about 64 pieces, enough for many processes. A large source has large ones, because each piece keeps
# its own sample for the tokenizer.
FEWEST_BYTES, MOST_BYTES = 4 << 20, 64 << 20
PIECES = 64


class Piece(NamedTuple):
    """Consecutive parts in a source: source index, first part, and the part after the last."""

    source: int
    first: int
    stop: int


def pieces_of(all_sources: list[Source]) -> list[Piece]:
    """Cut a corpus into pieces.

    Appending parts to a source leaves its earlier pieces unchanged, unless the source outgrows its piece size.
    """
    pieces = []
    for index, source in enumerate(all_sources):
        # A power of two changes only when a growing source has doubled; until then its earlier pieces stay as they are.
        bound = 1 << (sum(file.size for file in source.parts) // PIECES).bit_length()
        first, size, enough = 0, 0, min(max(FEWEST_BYTES, bound), MOST_BYTES)
        for part, file in enumerate(source.parts):
            size += file.size
            # A piece never spans two sources, so a growing source leaves the others' pieces as they are.
            if size >= enough or part == len(source.parts) - 1:
                pieces.append(Piece(index, first, part + 1))
                first, size = part + 1, 0
    return pieces


def folder_name(piece: Piece) -> str:
    """Return a piece's folder name."""
    return f"{piece.source:03}-{piece.first:06}"


def ignore(size: int) -> None:
    """Progress callback that does nothing."""


@dataclasses.dataclass(frozen=True)
class PartReader:
    """Reads one piece. Picklable with the default `on_read`.

    Attributes:
      work: parent folder for all piece folders.
      on_read: called with the bytes read since the last call.
    """

    config: DataConfig
    sources: list[Source]
    parts: list[Piece]
    work: epath.Path
    on_read: OnRead = ignore

    def __call__(self, number: int) -> None:
        """Write the folder for piece `number`, unless it exists.

        Raises:
          UserError: a part cannot be read, or a document is bad and bad documents stop the preparation.
        """
        piece = self.parts[number]
        target, name = self.work / folder_name(piece), self.sources[piece.source].name
        if storage.exists(target / SEAL):
            return
        messages, ledger = [], Ledger()

        def on_bad(error: UserError) -> None:
            if self.config.on_bad_document == "stop":
                raise error
            ledger.add(name, SKIPPED, 1, getattr(error, "size", 0))
            # All are counted, but only the first few are printed, and a piece must not grow with its bad documents.
            if len(messages) < LISTED:
                messages.append(str(error))

        sample = Sample(self.config.tokenizer.sample_characters)
        with whole_folder(target) as folder:
            (folder / "text").mkdir()
            with reading.open_dropped(self.config, folder) as dropped:
                entries = itertools.chain.from_iterable(
                    reading.read_part(self.sources, piece.source, part, self.on_read, on_bad)
                    for part in range(piece.first, piece.stop)
                )
                entries = _counted(entries, ledger, name)
                if dropped:
                    entries = cleaned(entries, self.config, dropped, ledger, [source.name for source in self.sources])
                sizes = reading.write(entries, self.config, self.sources, folder, sample)
            sampling.save(sample, folder / _SAMPLE)
            changes = dropped.changes if dropped else {}
            seal = {"shard_bytes": sizes, "messages": messages, "changes": changes, "ledger": ledger.numbers}
            (folder / SEAL).write_text(json.dumps(seal), encoding="utf-8")


def _counted(entries: Iterator[reading.Entry], ledger: Ledger, source: str) -> Iterator[reading.Entry]:
    """Count documents and characters as they are read, before any filter: one side of the ledger."""
    documents = characters = 0
    for entry in entries:
        documents += 1
        characters += len(entry.document.text)
        yield entry
    ledger.add(source, READ, documents, characters)


def read_seal(folder: epath.Path) -> dict[str, Any]:
    """Return the counts that `PartReader` recorded for a piece.

    Returns:
      `shard_bytes` per shard, `messages` about the first bad documents, `changes` (see `Dropped`), and `ledger` (see
      `Ledger.numbers`).
    """
    return json.loads(storage.read_bytes(folder / SEAL))


def merged(
    config: DataConfig, partial: Path, all_sources: list[Source], pieces: Sequence[Piece], work: epath.Path
) -> Reading:
    """Combine all pieces into one first pass: find duplicates and write the tokenizer's sample.

    Args:
      partial: unfinished preparation, see `prepare`.
      work: parent folder for all piece folders.
    """
    folders = {piece: work / folder_name(piece) for piece in pieces}
    seals = [read_seal(folder) for folder in folders.values()]
    bad, ledger = BadRecords(config.on_bad_document, "documents"), Ledger()
    for piece, seal in zip(pieces, seals, strict=True):
        source = all_sources[piece.source].name
        ledger.add_all(seal["ledger"])
        skipped, _ = seal["ledger"].get(source, {}).get(SKIPPED, (0, 0))
        # Each piece has kept its first messages, and `BadRecords` prints only the first ones of all.
        for _, message in itertools.zip_longest(range(skipped), seal["messages"]):
            bad.add(source, UserError(message))
    for name in (reading.DOCUMENTS, *([reading.NEAR] if config.near_duplicates.drop else [])):
        with open(partial / name, "wb") as file:
            for folder in folders.values():
                with open_file(folder / name) as part:
                    shutil.copyfileobj(part, file, MIB)
    with reading.open_dropped(config, partial / "store") as dropped:
        if dropped:
            for folder, seal in zip(folders.values(), seals, strict=True):
                with open_file(folder / DROPPED) as part, gzip.open(part) as lines:
                    dropped.add_all(lines, seal["changes"])
        sizes = tuple(itertools.chain.from_iterable(seal["shard_bytes"] for seal in seals))
        kept, copies, cleaning = reading.compared(config, partial, all_sources, dropped, ledger)
    _write_sample(config, partial, all_sources, folders, ledger)
    groups = reading.groups_of(all_sources)
    return Reading(groups, kept, copies, bad.skipped, sizes, cleaning, ledger.numbers)


def _write_sample(
    config: DataConfig, partial: Path, all_sources: list[Source], folders: dict[Piece, epath.Path], ledger: Ledger
) -> None:
    """Write the tokenizer's training texts in corpus order.

    If the configuration sets how often sources are drawn, each source gets the same share in the sample. A source that
    is smaller than its share is repeated, as in training.
    """
    dropped = duplicates.load(duplicates.path(partial))
    characters = {source.name: ledger.numbers.get(source.name, {}).get(READ, (0, 0))[1] for source in all_sources}
    shares = shares_of(config, characters)
    limit = config.tokenizer.sample_characters
    if shares is None:
        samples = [folder / _SAMPLE for folder in folders.values()]
        reading.save_sample(sampling.merged(limit, samples, dropped), partial)
        return
    # In a corpus smaller than the limit, every source would otherwise be repeated to fill the sample.
    limit = min(limit, sum(characters[name] for name in shares))
    texts: list[str] = []
    for index, source in enumerate(all_sources):
        if source.name not in shares:
            continue
        quota = max(1, round(limit * shares[source.name]))
        samples = [folder / _SAMPLE for piece, folder in folders.items() if piece.source == index]
        texts += _repeated(sampling.merged(quota, samples, dropped), quota)
    reading.save_sample(texts, partial)


def _repeated(texts: list[str], characters: int) -> list[str]:
    """Cycle through texts until they have about `characters` characters."""
    result, left = [], characters
    for text in itertools.cycle(texts):
        # Stop as near to the quota as possible: adding this text would overshoot by more than is missing now.
        if result and left < len(text) / 2:
            return result
        result.append(text)
        left -= len(text)
    return result


@contextlib.contextmanager
def whole_folder(target: epath.Path) -> Iterator[Path]:
    """Yield an empty local folder that becomes `target` when the block ends, unless another process was faster.

    At a URL, where folders cannot be renamed, the files are uploaded, the seal last.
    """
    if storage.is_remote(target):
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
            remote.upload(Path(name), target, SEAL)
        return
    Path(target.parent).mkdir(parents=True, exist_ok=True)
    # In the same file system, so that the rename is atomic. The dot marks drafts, which a resumed preparation removes.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".", ignore_cleanup_errors=True) as name:
        # One level deeper, because the temporary folder itself must still exist when the block ends.
        draft = Path(name, "piece")
        draft.mkdir()
        yield draft
        storage.flush_folder(draft)
        try:
            draft.rename(target)
        except OSError:  # another process has written the same
            if not storage.exists(target / SEAL):
                raise
