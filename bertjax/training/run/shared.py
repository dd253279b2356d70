"""Whether all processes of a run have the same workdir."""

import time
import uuid

import jax
from etils import epath

from bertjax import storage
from bertjax.errors import UserError
from bertjax.training.parallel import processes
from bertjax.training.run.workdir import Workdir

_LOOKS, _SECONDS_BETWEEN_LOOKS = 60, 1.0


def check_shared(workdir: Workdir) -> None:
    """Raise UserError, in every process, unless all of them see a file that process 0 writes and then removes.

    Its name is new each time, since a client of NFS remembers what a file had in it. If the process is killed, the next
    start removes it as a draft.
    """
    if jax.process_count() == 1:
        return
    name = processes.from_writer(lambda: f".shared.{uuid.uuid4().hex}.draft", "mark")
    mark = workdir.root / name
    processes.on_writer(lambda: storage.write_bytes(mark, b"seen by all processes?"), "write-mark")
    try:
        processes.together(lambda: wait_for(mark, workdir), "see-mark")
    finally:
        processes.on_writer(lambda: mark.unlink(missing_ok=True), "remove-mark")


def wait_for(mark: epath.Path, workdir: Workdir) -> None:
    """Raise UserError if a file does not appear within a minute."""
    # A client of NFS may remember for half a minute (acdirmin, nfs(5)) what a folder had in it.
    for _ in range(_LOOKS):
        if storage.exists(mark):
            return
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    raise UserError(f"workdir {workdir.root} is not the workdir of process 0; name one that all processes share")
