"""The steps of a preparation for machines that share only a work folder, local or remote.

The work folder has a folder for each piece of the corpus (`pieces`), which also gets `tokens/` and `duplicates.bin`. A
file is named by what it holds and appears whole, and its bytes depend on nothing else. So a step that is repeated, or
runs twice at once, changes nothing, and what a stopped preparation has finished is not done again.
"""

import bisect
import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from etils import epath

from bertjax import storage
from bertjax.data.preparation import duplicates, shards
from bertjax.data.preparation.local import BadDocument, ShardEncoder
from bertjax.data.preparation.pieces import Piece, folder_name
from bertjax.data.preparation.shards import DamagedShard
from bertjax.errors import RunFailed, Unavailable, UserError

# Of the files in a work folder.
FORMAT_VERSION = 2
_ERRORS = "errors"
_KINDS = {kind.__name__: kind for kind in (BadDocument, DamagedShard, RunFailed)}


@dataclasses.dataclass(frozen=True)
class PartEncoder:
    """Encodes shards of text.

    Attributes:
      parts: see `PartReader`.
      ends: number of the shards up to the end of each piece.
      encoder: the local step, with a folder that is replaced.
    """

    parts: list[Piece]
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
        """Return the folder of the piece of a shard, and the index of the shard in it."""
        part = bisect.bisect_right(self.ends, number)
        return self.work / folder_name(self.parts[part]), number - (self.ends[part - 1] if part else 0)


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
