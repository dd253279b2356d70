"""The Apache Beam runner: preparation steps on many machines.

Beam maps two steps, one over corpus pieces (`pieces`) and one over text shards (`parts`). The launching program does
what needs all documents: deduplication, tokenizer training and assembly. Steps exchange files in a work folder instead
of Beam elements. They are idempotent, because Beam may repeat any of them.
"""

import contextlib
import dataclasses
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from bertjax.data.config import DataConfig
from bertjax.data.preparation import duplicates, reading, shards
from bertjax.data.preparation.duplicates import PACKED_KEY
from bertjax.data.preparation.local import ShardEncoder
from bertjax.data.preparation.parts import FORMAT_VERSION, PartEncoder, Reporting
from bertjax.data.preparation.pieces import PartReader, folder_name, merged, pieces_of, read_seal
from bertjax.data.preparation.reading import Reading
from bertjax.data.preparation.shards import DamagedShard
from bertjax.data.preparation.steps import EncodedShard, Key
from bertjax.data.sources.bad import BadRecords
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime import storage
from bertjax.runtime.errors import RunFailed, UserError, reason

# Only with this runner are the workers sure to see this machine's files.
HERE = "FnApiRunner"


@dataclasses.dataclass(frozen=True)
class Beam:
    """Runs a preparation with Apache Beam; see `building.Runner`.

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
            raise UserError(
                f"--runner={self.runner} needs --temp_location, a folder that all workers can write, such as "
                "--temp_location=gs://bucket/folder"
            )

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

    def encode(
        self, config: DataConfig, partial: Path, read: Reading, trained: Tokenizer, token_dtype: np.dtype
    ) -> Iterator[EncodedShard]:
        work, pieces = self._work(partial), pieces_of(reading.sources_of(config))
        numbers = [len(read_seal(work / folder_name(piece))["shard_bytes"]) for piece in pieces]
        remedy = "or set data.on_bad_document=skip"
        local = ShardEncoder(partial, trained, config.splitter, config.on_bad_document, read.groups, remedy)
        step = PartEncoder(pieces, list(itertools.accumulate(numbers)), work, local)
        bad = BadRecords(config.on_bad_document, "documents")
        try:
            self._apply("encode", step, sum(numbers), work)
            for number in range(sum(numbers)):
                shard = shards.read_tokens(shards.tokens_path(*step.place(number)), token_dtype)
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
