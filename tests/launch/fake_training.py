"""A stand-in for `python -m bertjax.train` on a worker of the cloud of fake_gcloud.py.

The list `trainings` of the cloud's script sets how each attempt ends, the same on every worker: with that exit code, or

- "preempted", "vm preempted": the TPU is taken away while the training runs
- "partly": worker 0 fails and the others hang
- "until stopped": with 75 after SIGTERM
"""

import json
import signal
import sys
import time

from fake_gcloud import CLOUD, Resource, write

worker = sys.argv.pop(1)
attempts = CLOUD / f"attempts{worker}"
with attempts.open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\n")
outcome = json.loads((CLOUD / "script").read_text())["trainings"][len(attempts.read_text().splitlines()) - 1]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
if outcome == "partly":
    outcome = 1 if worker == "0" else "until stopped"
if outcome in ("preempted", "vm preempted") and worker == "0":
    states = ["SUSPENDING", "SUSPENDED"] if outcome == "preempted" else ["VM PREEMPTED"]
    [file] = CLOUD.glob("*.json")
    write(file, {**Resource(file.stem).read(), "states": states})
if isinstance(outcome, str):
    time.sleep(60)
print(f"bertjax: this was attempt {outcome}")
sys.exit(outcome)
