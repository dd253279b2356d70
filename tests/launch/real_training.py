"""What a worker of the cloud of fake_gcloud.py runs in place of `python` if the training is to be real.

It becomes `python -m bertjax.train` of the code that was sent to the worker. Addresses of buckets become folders. The
list `preemptions` of the cloud holds one event for each attempt, after which attempts are left alone:

- ["steps", N]: the TPU is taken away without a warning when this attempt has logged N steps
- ["seconds", S]: the same S seconds after the start: the run imports, restores, compiles or trains
- ["warned", N]: after N steps the run gets SIGTERM and may save; the TPU goes when it has ended
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from fake_gcloud import CLOUD, Resource, in_bucket, write

# Code that trains and, if it finishes before it is preempted, creates the file AT_END and waits for that.
WAITS = """
import os, pathlib, runpy, time
try:
    runpy.run_module("bertjax.train", run_name="__main__", alter_sys=True)
except SystemExit as end:
    if not end.code:
        pathlib.Path(os.environ["AT_END"]).touch()
        time.sleep(10_000)
    raise
"""


def lines_of(file: Path) -> list[str]:
    return file.read_text().split("\n")[:-1] if file.exists() else []


def newest_step(workdir: Path) -> int:
    lines = lines_of(workdir / "metrics.jsonl")
    return json.loads(lines[-1])["step"] if lines else 0


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def reserve_port() -> int:
    """Return a port that no other program gets before the training binds it; see tests/ports.py."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    port = holder.getsockname()[1]
    os.set_inheritable(holder.detach(), True)  # the training, which takes the place of this process, keeps it
    return port


def preempt(process: int, kind: str, moment: float, workdir: Path) -> None:
    """Wait for the moment, or for the end of the training, and take the TPU away unless the training fails before."""
    at_end = Path(os.environ["AT_END"])
    start, starts = time.monotonic(), len(lines_of(workdir / "starts.jsonl"))
    first = newest_step(workdir)
    while is_running(process):
        if kind == "seconds":
            passed = time.monotonic() - start
        else:
            # A run that resumes takes back the steps after its checkpoint.
            first = min(first, newest_step(workdir))
            has_begun = len(lines_of(workdir / "starts.jsonl")) > starts
            passed = newest_step(workdir) - first if has_begun else 0
        if passed >= moment or at_end.exists():
            break
        time.sleep(0.02)
    else:
        return
    os.kill(process, signal.SIGTERM if kind == "warned" else signal.SIGKILL)
    while is_running(process):
        if at_end.exists():  # it had finished before it got a signal
            os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    # The line comes first: once the TPU is suspended, the cloud kills the worker's processes, and this is one of them.
    with (CLOUD / "preempted").open("a") as log:
        log.write(f"{kind} {moment:g}: at step {newest_step(workdir)}, {time.monotonic() - start:.1f} s\n")
    [file] = CLOUD.glob("*.json")
    write(file, {**Resource(file.stem).read(), "states": ["SUSPENDING", "SUSPENDED"]})


if __name__ == "__main__":
    if sys.argv[1] == "preempt":
        preempt(int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), Path(sys.argv[5]))
        sys.exit()
    attempts = CLOUD / "attempts0"
    with attempts.open("a") as file:
        file.write(json.dumps(sys.argv[2:]) + "\n")
    arguments = [
        f"--workdir={in_bucket(argument.partition('=')[2])}" if argument.startswith("--workdir=gs://") else argument
        for argument in sys.argv[2:]
    ]
    [workdir] = [argument.partition("=")[2] for argument in arguments if argument.startswith("--workdir=")]
    events = json.loads((CLOUD / "preemptions").read_text())
    number = len(attempts.read_text().splitlines())
    program = arguments
    if number <= len(events):
        os.environ["AT_END"] = str(CLOUD / f"end{number}")
        watch = [sys.executable, "-SE", __file__, "preempt", str(os.getpid()), *map(str, events[number - 1]), workdir]
        # It shares the lock of the worker (pod_worker.sh), so nobody sees the end of the training before it does.
        subprocess.Popen(watch, stdin=subprocess.DEVNULL, pass_fds=[9])
        program = ["-c", WAITS, *arguments[2:]]  # without -m bertjax.train
    alone = {"JAX_COORDINATOR_ADDRESS": f"localhost:{reserve_port()}", "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}
    environment = {**os.environ, **alone, "PYTHONPYCACHEPREFIX": str(CLOUD / "compiled")}
    environment.pop("PYTHONPATH", None)  # the code that was sent, and no other
    os.execve(sys.executable, [sys.executable, *program, "--platform=cpu"], environment)
