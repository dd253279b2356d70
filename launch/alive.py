"""The liveness probe of gke_jobset.yaml: exit with 1 if a run shows no sign of life, otherwise with 0.

`time` in WORKDIR/heartbeat.json may be 30 minutes old while the run trains, and 90 minutes in its other states, such as
starting or compiling. A file of an attempt before this one counts as `starting`, from the start of the container: that
attempt was training when it was killed, and this one may need an hour to open its data. A file that is absent or that
cannot be read is no sign of a hang: the run may not have written one yet, or the bucket does not answer.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from etils import epath

HANG_SECONDS = 1800  # as in tpu_pod.sh


def started(proc: Path = Path("/proc")) -> float:
    """Return when process 1 in this container started, in seconds since 1970."""
    [boot] = [line.split()[1] for line in (proc / "stat").read_text().splitlines() if line.startswith("btime ")]
    # The name of the process, in parentheses, may contain spaces. The start is field 22 (proc(5)).
    ticks = (proc / "1" / "stat").read_text().rpartition(")")[2].split()[19]
    return int(boot) + int(ticks) / os.sysconf("SC_CLK_TCK")


def is_alive(heartbeat: dict, start: float, now: float) -> bool:
    """Return whether a heartbeat, or the container's start, is recent enough."""
    is_training = heartbeat["state"] == "training" and heartbeat["time"] > start
    limit = HANG_SECONDS if is_training else 3 * HANG_SECONDS
    return now - max(heartbeat["time"], start) <= limit


def newest(workdir: epath.Path) -> dict:
    """Return the newest heartbeat in a workdir, or in those of its seeds, folds or combinations of a sweep."""
    files = [workdir / "heartbeat.json", *workdir.glob("*/heartbeat.json")]
    return max((json.loads(file.read_text()) for file in files if file.exists()), key=lambda found: found["time"])


def main(workdir: str) -> int:
    try:
        heartbeat = newest(epath.Path(workdir))
        alive = is_alive(heartbeat, started(), time.time())
    except Exception as error:  # object stores raise classes of many libraries
        print(f"no heartbeat could be read in {workdir}: {error}")
        return 0
    print(heartbeat)
    return 0 if alive else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdir", metavar="WORKDIR", help="workdir of the run: a folder, or gs://BUCKET/DIR")
    sys.exit(main(parser.parse_args().workdir))
