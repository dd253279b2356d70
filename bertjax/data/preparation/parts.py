"""Preparation steps for machines that share nothing but a work folder, local or remote.

The work folder has one folder per piece (`pieces`), which later receives `tokens/` and `duplicates.bin`. Files are
written atomically, and their bytes depend only on their names. So steps are idempotent: they may be repeated or run
twice at once, and a resumed preparation skips finished ones.
"""

import bisect
import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from etils import epath

from bertjax.data.preparation import duplicates, shards
from bertjax.data.preparation.local import BadDocument, ShardEncoder
from bertjax.data.preparation.pieces import Piece, folder_name
from bertjax.data.preparation.shards import DamagedShard
from bertjax.runtime import storage
from bertjax.runtime.errors import RunFailed, Unavailable, UserError

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
