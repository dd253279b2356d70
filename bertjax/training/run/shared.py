"""Check that all processes of a run share one workdir."""

import time
import uuid

import jax
from etils import epath

from bertjax.runtime import storage
from bertjax.runtime.errors import UserError
from bertjax.training.parallel import processes
from bertjax.training.run.workdir import Workdir

_LOOKS, _SECONDS_BETWEEN_LOOKS = 60, 1.0


def check_shared(workdir: Workdir) -> None:
    """Raise UserError in every process unless all see a file that process 0 writes and then removes.

    The file has a new name each time, because an NFS client caches known files. The name ends in `.draft`, so the next
    start removes the file if this process is killed.
    """
    if jax.process_count() == 1:
        return
    name = processes.from_writer(lambda: f".shared.{uuid.uuid4().hex}.draft", "mark")
    mark = workdir.root / name
    processes.on_writer(lambda: storage.write_bytes(mark, b"seen by all processes?"), "write-mark")
    try:
        processes.together(wait_for, mark, workdir, purpose="see-mark")
    finally:
        processes.on_writer(lambda: mark.unlink(missing_ok=True), "remove-mark")


def wait_for(mark: epath.Path, workdir: Workdir) -> None:
    """Raise UserError if a file does not appear within a minute."""
    # An NFS client may cache the listing of a folder for half a minute (acdirmin, nfs(5)).
    for _ in range(_LOOKS):
        if storage.exists(mark):
            return
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    raise UserError(f"workdir {workdir.root} is not the workdir of process 0; name one that all processes share")
