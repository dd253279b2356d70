"""The Apache Beam runner: preparation steps on many machines.

Beam maps two steps, one over corpus pieces (`pieces`) and one over text shards. The launching program does what needs
all documents: deduplication, tokenizer training and assembly.

Steps exchange files in a work folder, local or remote, instead of Beam elements. It has one folder per piece, which
later receives `tokens/` and `duplicates.bin`. Files are written atomically, and their bytes depend only on their names.
So steps are idempotent: Beam may repeat them or run them twice at once, and a resumed preparation skips finished ones.
"""

import bisect
import contextlib
import dataclasses
import io
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from bertjax.data.config import DataConfig
from bertjax.data.preparation import duplicates, reading, shards
from bertjax.data.preparation.duplicates import PACKED_KEY
from bertjax.data.preparation.local import BadDocument, ShardEncoder
from bertjax.data.preparation.pieces import PartReader, Piece, folder_name, merged, pieces_of, read_seal
from bertjax.data.preparation.reading import Reading
from bertjax.data.preparation.shards import DamagedShard
from bertjax.data.preparation.steps import EncodedShard, Key
from bertjax.data.sources.base import BadRecords
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime import storage
from bertjax.runtime.errors import RunFailed, Unavailable, UserError, reason

# Version of the files in a work folder; part of its name.
FORMAT_VERSION = 3
_ERRORS = "errors"
_KINDS = {kind.__name__: kind for kind in (BadDocument, DamagedShard, RunFailed)}


@dataclasses.dataclass(frozen=True)
class PartEncoder:
    """Encodes one text shard in the work folder.

    Attributes:
      parts: see `PartReader`.
      ends: cumulative shard count after each piece.
      encoder: the local step; its folder is replaced by a scratch folder.
    """

    parts: list[Piece]
    ends: list[int]
    work: epath.Path
    encoder: ShardEncoder

    def __call__(self, number: int) -> None:
        """Write token shard `number`, unless it exists undamaged.

        Raises:
          BadDocument: a document holds no token, and bad documents stop the preparation.
          DamagedShard: the text has changed since it was written.
        """
        folder, index = self.place(number)
        target = shards.tokens_path(folder, index)
        # A damaged shard counts as missing and is written again.
        with contextlib.suppress(DamagedShard):
            if storage.exists(target):
                shards.read(target)
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
        """Return a shard's piece folder and its index in there."""
        part = bisect.bisect_right(self.ends, number)
        return self.work / folder_name(self.parts[part]), number - (self.ends[part - 1] if part else 0)


@dataclasses.dataclass(frozen=True)
class Reporting:
    """Runs a step and writes permanent errors to a file, which the launching program reads and raises.

    Beam would retry such a step. Once there is an error file, no further step starts.
    """

    step: Callable[[int], None]
    work: epath.Path

    def __call__(self, number: int) -> None:
        """Run step `number`.

        Raises:
          Unavailable: a transient failure; Beam repeats the step.
        """
        # Some step has failed for good. Returning at once lets the pipeline end without wasted work.
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
        """Create the work folder and remove error files from an earlier run.

        Raises:
          StorageError: it cannot be written.
        """
        with storage.storage_errors(self.work):
            if (self.work / _ERRORS).exists():
                (self.work / _ERRORS).rmtree()
            (self.work / _ERRORS).mkdir(parents=True)
        # An object store has no real folders, so only a file proves that the folder can be written.
        storage.write_bytes(self.work / "writable", b"")

    def raise_error(self) -> None:
        """Raise the first reported error, if there is one."""
        if names := self._reported():
            # Errors crossed machines as text, so the class is restored by its name.
            kind, message = json.loads(storage.read_bytes(self.work / _ERRORS / names[0]))
            raise _KINDS.get(kind, UserError)(message)

    def _reported(self) -> list[str]:
        """Return the error file names, without drafts, which start with a dot."""
        return [name for name in storage.names_in(self.work / _ERRORS) if not name.startswith(".")]


# Only with this runner are the workers sure to see this machine's files.
HERE = "FnApiRunner"


@dataclasses.dataclass(frozen=True)
class Beam:
    """Runs a preparation with Apache Beam; see `prepare.Runner`.

    Attributes:
      runner: Beam's name for the runner.
      flags: other Beam flags, such as `--temp_location=gs://bucket/folder`.

    Raises:
      UserError: Apache Beam or the runner's dependencies are not installed, the runner does not exist, or it has no
        folder that all workers can write.
    """

    runner: str
    flags: Sequence[str] = ()

    def __post_init__(self):
        try:
            from apache_beam.runners import runner as runners

            # Only to fail early: the pipeline makes its own runner from the flags.
            runners.create_runner(self.runner)
        except ImportError as error:
            package = "apache-beam[gcp]" if "dataflow" in self.runner.lower() else ".[beam]"
            raise UserError(
                f"--runner={self.runner} needs Apache Beam ({reason(error)}); pip install '{package}'"
            ) from error
        except Exception as error:  # an unknown name, or any error in a user's class
            raise UserError(f"--runner={self.runner} cannot be made: {reason(error)}") from error
        if self.runner != HERE and not self._temp_location():
            folder = "a folder that all workers can write, such as gs://bucket/folder"
            raise UserError(f"--runner={self.runner} needs --temp_location, {folder}; set it")

    def identity(self, partial: Path) -> dict[str, Any]:
        # Finished pieces are in the work folder, so a resume needs the same one.
        return {"work": str(self._work(partial))}

    def read(self, config: DataConfig, partial: Path) -> Reading:
        work, all_sources = self._work(partial), reading.sources_of(config)
        pieces = pieces_of(all_sources)
        self._apply("read", PartReader(config, all_sources, pieces, work), len(pieces), work)
        read = merged(config, partial, all_sources, pieces, work)
        # Keys are sorted in corpus order, so a piece's keys are adjacent, and its workers need no others.
        keys = np.fromfile(duplicates.path(partial), PACKED_KEY)
        for piece in pieces:
            # Documents are numbered from 1, so number 0 sorts before every document of a part.
            ends = [Key(piece.source, part, 0).packed() for part in (piece.first, piece.stop)]
            first, last = np.searchsorted(keys, np.array(ends, PACKED_KEY))
            storage.write_bytes(duplicates.path(work / folder_name(piece)), keys[first:last].tobytes())
        return read

    def encode(self, config: DataConfig, partial: Path, read: Reading, trained: Tokenizer) -> Iterator[EncodedShard]:
        work, pieces = self._work(partial), pieces_of(reading.sources_of(config))
        numbers = [len(read_seal(work / folder_name(piece))["shard_bytes"]) for piece in pieces]
        remedy = "or set data.on_bad_document=skip"
        local = ShardEncoder(partial, trained, config.splitter, config.on_bad_document, read.groups, remedy)
        step = PartEncoder(pieces, list(itertools.accumulate(numbers)), work, local)
        bad = BadRecords(config.on_bad_document, "documents")
        try:
            self._apply("encode", step, sum(numbers), work)
            for number in range(sum(numbers)):
                shard = shards.read_tokens(shards.tokens_path(*step.place(number)), trained)
                for group, message, _ in shard.skipped:
                    bad.add(read.groups[group][1], UserError(message))
                yield shard
        # The next attempt starts with an empty `partial`. A work folder elsewhere would survive, and be resumed.
        except DamagedShard:
            work.rmtree()
            raise

    def clean(self, partial: Path) -> None:
        with contextlib.suppress(OSError), storage.storage_errors(self._work(partial)):
            self._work(partial).rmtree()

    def _apply(self, name: str, step: Callable[[int], None], steps: int, work: epath.Path) -> None:
        """Run a step for each number below `steps`.

        Raises:
          UserError: a step raised it, or the work folder is not writable.
          RunFailed: the runner failed.
        """
        reporting = Reporting(step, work)
        try:
            reporting.clear()
        except OSError as error:
            remedy = "name a folder that all workers can write as --temp_location"
            raise storage.user_error(error, f"cannot write {work}", remedy) from error
        try:
            self._run(name, reporting, steps)
        # An error that a step reported names the cause; the runner knows only that something failed.
        except RunFailed:
            reporting.raise_error()
            raise
        reporting.raise_error()

    def _run(self, name: str, step: Callable[[int], None], steps: int) -> None:
        """Run a one-step pipeline.

        Raises:
          RunFailed: the runner failed.
        """
        import apache_beam
        from apache_beam.runners.runner import PipelineState

        try:
            pipeline = apache_beam.Pipeline(options=self._options())
            numbers = pipeline | apache_beam.Create(range(steps))  # spread over the workers
            numbers | name >> apache_beam.Map(step)
            state = pipeline.run().wait_until_finish()
        except Exception as error:  # runners raise errors of their own
            raise RunFailed(
                f"--runner={self.runner} failed: {reason(error)}; run the same command again to resume"
            ) from error
        if state != PipelineState.DONE:
            raise RunFailed(f"--runner={self.runner} ended as {state}; run the same command again to resume")

    def _work(self, partial: Path) -> epath.Path:
        temp = self._temp_location()
        if not temp:
            return epath.Path(partial / "beam")
        folder = epath.Path(temp) if storage.is_remote(temp) else epath.Path(temp).expanduser().absolute()
        return folder / f"{partial.name}-{FORMAT_VERSION}"

    def _temp_location(self) -> str | None:
        from apache_beam.options.pipeline_options import GoogleCloudOptions

        return self._options().view_as(GoogleCloudOptions).temp_location

    def _options(self):
        """Return the pipeline options. Beam logs unknown flags.

        Raises:
          UserError: a flag has a wrong value.
        """
        from apache_beam.options.pipeline_options import PipelineOptions

        options = PipelineOptions([f"--runner={self.runner}", *self.flags])
        try:
            with contextlib.redirect_stderr(io.StringIO()) as usage:
                options.get_all_options(retain_unknown_options=True)
        # Beam parses with argparse, which prints its usage and exits the program. Only the text after "error: " is
        # useful.
        except SystemExit:
            raise UserError(f"flags of Apache Beam: {usage.getvalue().strip().partition('error: ')[2]}") from None
        return options
