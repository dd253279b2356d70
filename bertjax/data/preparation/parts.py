"""The steps of a preparation for machines that share only a work folder, local or remote.

The work folder has a folder for each part of the corpus, with `documents.bin`, `near.bin`, `dropped.jsonl.gz`,
`sample.jsonl`, `text/`, `tokens/`, `duplicates.bin`, and `part.json`, which is written last. A file is named by what it
holds and appears whole, and its bytes depend on nothing else. So a step that is repeated, or runs twice at once,
changes nothing, and what a stopped preparation has finished is not done again.
"""

import bisect
import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from etils import epath

from bertjax import storage
from bertjax.data import remote
from bertjax.data.config import DataConfig
from bertjax.data.preparation import duplicates, reading, shards
from bertjax.data.preparation.local import BadDocument, ShardEncoder
from bertjax.data.preparation.reading import Source
from bertjax.data.preparation.sample import Sample, Stretch
from bertjax.data.preparation.shards import DamagedShard
from bertjax.data.preparation.steps import Key
from bertjax.data.sources.access import open_file
from bertjax.data.sources.bad import LISTED
from bertjax.errors import RunFailed, Unavailable, UserError

# Of the files in a work folder.
FORMAT_VERSION = 1
SEAL, _SAMPLE, _ERRORS = "part.json", "sample.jsonl", "errors"
_KINDS = {kind.__name__: kind for kind in (BadDocument, DamagedShard, RunFailed)}


@dataclasses.dataclass(frozen=True)
class PartReader:
    """Reads parts of the corpus: the first pass of `reading.read` for each of them.

    Attributes:
      parts: (index of the source, index of the part in it) of each part.
    """

    config: DataConfig
    sources: list[Source]
    parts: list[tuple[int, int]]
    work: epath.Path

    def __call__(self, number: int) -> None:
        """Write the folder of a part, unless it is there.

        Raises:
          UserError: the part cannot be read, or a document is bad and bad documents stop the preparation.
        """
        source, part = self.parts[number]
        target = self.work / folder_name(source, part)
        if storage.exists(target / SEAL):
            return
        messages, skipped = [], 0

        def on_bad(error: UserError) -> None:
            nonlocal skipped
            if self.config.on_bad_document == "stop":
                raise error
            skipped += 1
            if skipped <= LISTED:
                messages.append(str(error))

        sample = Sample(self.config.tokenizer.sample_characters)
        with whole_folder(target) as folder:
            (folder / "text").mkdir()
            with reading.open_dropped(self.config, folder) as dropped:
                entries = reading.read_part(self.sources, source, part, lambda size: None, on_bad)
                sizes = reading.write(entries, self.config, self.sources, folder, sample, dropped, processes=0)
            lines = [sample.limit, *sample.stretches()]
            content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            (folder / _SAMPLE).write_bytes(content.encode())
            changes = dropped.changes if dropped else {}
            seal = {"shard_bytes": sizes, "skipped": skipped, "messages": messages, "changes": changes}
            (folder / SEAL).write_text(json.dumps(seal), encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class PartEncoder:
    """Encodes shards of text.

    Attributes:
      parts: see `PartReader`.
      ends: number of the shards up to the end of each part.
      encoder: the local step, with a folder that is replaced.
    """

    parts: list[tuple[int, int]]
    ends: list[int]
    work: epath.Path
    encoder: ShardEncoder

    def __call__(self, number: int) -> None:
        """Write a shard of tokens, unless it is there.

        Raises:
          BadDocument: a document holds no token, and bad documents stop the preparation.
          DamagedShard: the text differs from what was written.
        """
        folder, index = self.place(number)
        target = shards.tokens_path(folder, index)
        with contextlib.suppress(DamagedShard):
            if storage.exists(target):
                shards.check_tokens(folder, index)
                return
        with tempfile.TemporaryDirectory() as name:
            scratch = Path(name)
            for path in (duplicates.path(scratch), shards.text_path(scratch, index)):
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(storage.read_bytes(folder / path.relative_to(scratch)))
            (scratch / "tokens").mkdir()
            dataclasses.replace(self.encoder, folder=scratch)(index)
            target.parent.mkdir(exist_ok=True)
            storage.write_bytes(target, shards.tokens_path(scratch, index).read_bytes())

    def place(self, number: int) -> tuple[epath.Path, int]:
        """Return the folder of the part of a shard, and the index of the shard in it."""
        part = bisect.bisect_right(self.ends, number)
        return self.work / folder_name(*self.parts[part]), number - (self.ends[part - 1] if part else 0)


@dataclasses.dataclass(frozen=True)
class Reporting:
    """Applies a step, and writes an error that repetition does not help to a file: whoever started it raises it.

    If there is such a file, no further step starts.
    """

    step: Callable[[int], None]
    work: epath.Path

    def __call__(self, number: int) -> None:
        """Apply the step.

        Raises:
          Unavailable: the same step may succeed later.
        """
        if self._reported():
            return
        try:
            self.step(number)
        except Unavailable:
            raise
        except UserError as error:
            content = json.dumps([type(error).__name__, str(error)])
            storage.write_text(self.work / _ERRORS / f"{number:09}.json", content)

    def clear(self) -> None:
        """Make the work folder, without the errors of an earlier preparation.

        Raises:
          StorageError: it cannot be written.
        """
        with storage.storage_errors(self.work):
            if (self.work / _ERRORS).exists():
                (self.work / _ERRORS).rmtree()
            (self.work / _ERRORS).mkdir(parents=True)
        storage.write_bytes(self.work / "writable", b"")

    def raise_error(self) -> None:
        """Raise the first error that a step has reported."""
        if names := self._reported():
            kind, message = json.loads(storage.read_bytes(self.work / _ERRORS / names[0]))
            raise _KINDS.get(kind, UserError)(message)

    def _reported(self) -> list[str]:
        """Return the names of the files with errors; that of a draft starts with a dot."""
        return [name for name in storage.names_in(self.work / _ERRORS) if not name.startswith(".")]


def parts_of(all_sources: list[Source]) -> list[tuple[int, int]]:
    """Return the index of the source of each part, and its own."""
    return [(index, part) for index, source in enumerate(all_sources) for part in range(len(source.parts))]


def folder_name(source: int, part: int) -> str:
    """Return the name of the folder of a part."""
    return f"{source:03}-{part:06}"


def read_seal(folder: epath.Path) -> dict[str, Any]:
    """Return what `PartReader` counts in a part.

    Returns:
      `shard_bytes` of each shard, `skipped` (number of bad documents), `messages` of the first ones, and `changes` (see
      `Dropped`).
    """
    return json.loads(storage.read_bytes(folder / SEAL))


def read_sample(folder: epath.Path) -> tuple[Iterator[Stretch], int]:
    """Return the stretches of a part, lowest priority first, and the limit of its sample."""

    def stretches() -> Iterator[Stretch]:
        for line in file:
            priority, key, index, text = json.loads(line)
            yield Stretch(priority, Key(*key), index, text)

    file = open_file(folder / _SAMPLE)
    return stretches(), json.loads(file.readline())


@contextlib.contextmanager
def whole_folder(target: epath.Path) -> Iterator[Path]:
    """Make an empty local folder; `target` has its files when the block ends, the seal last, or had them before."""
    if storage.is_remote(target):
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
            remote.upload(Path(name), target, SEAL)
        return
    try:
        with storage.whole_folder(Path(target)) as draft:
            yield draft
    except OSError:
        if not storage.exists(target / SEAL):
            raise
