"""A stand-in for `python -m bertjax.train` on a worker of the cloud of fake_gcloud.py.

The list `trainings` of the cloud's script sets how each attempt ends, the same on every worker: with that exit code, or

- [checkpoint, code, code]: it saves that checkpoint (if it is above 0), and then each worker ends with its code
- "preempted", "vm preempted": the TPU is taken away while the training runs
- "partly": worker 0 fails and the others hang
- "hanging": after one heartbeat nothing happens, and SIGTERM has no effect
- "hanging seed": the same in the second run of --seeds
- "until stopped": with 75 after SIGTERM
"""

import json
import os
import signal
import sys
import time

from fake_gcloud import CLOUD, Resource, in_bucket, write

worker = sys.argv.pop(1)


def attempts_of(number: str) -> int:
    file = CLOUD / f"attempts{number}"
    return len(file.read_text().splitlines()) if file.exists() else 0


signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))  # before anybody can see that this attempt runs
with (CLOUD / f"attempts{worker}").open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\n")
with (CLOUD / f"environments{worker}").open("a") as file:
    file.write(json.dumps(dict(os.environ)) + "\n")
attempt = attempts_of(worker)
outcome = json.loads((CLOUD / "script").read_text())["trainings"][attempt - 1]
[workdir] = [in_bucket(flag.partition("=")[2]) for flag in sys.argv if flag.startswith("--workdir=")]
if outcome in ("partly", "preempted", "vm preempted") and worker == "0":
    while attempts_of("1") < attempt:  # or the workers would count apart from here on
        time.sleep(0.05)
if outcome == "partly":
    outcome = 1 if worker == "0" else "until stopped"
if outcome in ("preempted", "vm preempted") and worker == "0":
    states = ["SUSPENDING", "SUSPENDED"] if outcome == "preempted" else ["VM PREEMPTED"]
    [file] = CLOUD.glob("*.json")
    write(file, {**Resource(file.stem).read(), "states": states})
if outcome in ("hanging", "hanging seed"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    workdir = workdir / "seed=1" if outcome == "hanging seed" else workdir
    workdir.mkdir(parents=True, exist_ok=True)
    write(workdir / "heartbeat.json", {"step": 5, "time": 1.0, "state": "training", "steps": 100})
if isinstance(outcome, list):
    checkpoint, *codes = outcome
    if checkpoint:
        folder = workdir / "checkpoints" / str(checkpoint)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "commit_success.txt").touch()
    outcome = codes[int(worker)]
if isinstance(outcome, str):
    time.sleep(10_000)
print(f"bertjax: this was attempt {outcome}")
sys.exit(outcome)
