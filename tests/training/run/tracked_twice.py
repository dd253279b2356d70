"""Pass the steps of a run and of its resumption to a tracker; in another process, read them and print them as JSON.

python -m tests.training.run.tracked_twice track|read KIND FOLDER
"""

import json
import os
import struct
import sys
from pathlib import Path

from etils import epath

from bertjax.training.run.trackers import Tracking
from bertjax.training.run.workdir import Workdir

SETTINGS = {"seed": 3, "stages": [{"steps": 3}], "runtime": {"skip_rows": []}}


def track(kind: str, root: Path) -> None:
    """Three steps; the second start repeats the second one, as after a kill."""
    for steps in ((1, 2), (2, 3)):
        with Tracking(kind, Workdir(epath.Path(root)), SETTINGS) as tracking:
            for step in steps:
                tracking.add(step, {"train/mlm_loss": 10.0 / step, "train/odd": float("nan")})


def read_mlflow(root: Path) -> dict:
    import mlflow

    client = mlflow.MlflowClient(f"file:{root}/mlruns")
    [run] = client.search_runs([client.get_experiment_by_name("bertjax").experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/mlm_loss")
    return {"id": run.info.run_id, "steps": [[metric.step, metric.value] for metric in history], "runs": 1}


def read_trackio(root: Path) -> dict:
    from trackio.sqlite_storage import SQLiteStorage

    runs = SQLiteStorage.get_runs("bertjax")
    logs = SQLiteStorage.get_logs("bertjax", runs[0])
    return {"id": runs[0], "steps": [[log["step"], log["train/mlm_loss"]] for log in logs], "runs": len(runs)}


def log_records(data: bytes):
    """Yield the records of a log of LevelDB, after W&B's header of 7 bytes."""
    place, record = 7, b""
    while place < len(data):
        left = 32_768 - place % 32_768
        if left < 7:  # no header fits in the rest of the block
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def read_wandb(root: Path) -> dict:
    from wandb.proto import wandb_internal_pb2

    ids, steps = set(), []
    for path in sorted(root.glob("wandb/offline-run-*/*.wandb")):
        for data in log_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                ids.add(record.run.run_id)
            if record.HasField("history"):
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                steps.append([record.history.step.num, json.loads(items["train/mlm_loss"])])
    return {"id": ",".join(ids), "steps": steps, "runs": len(ids)}


if __name__ == "__main__":
    action, kind, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    os.environ |= {"WANDB_MODE": "offline", "TRACKIO_DIR": str(folder / "trackio"), "HF_HUB_OFFLINE": "1"}
    os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true"} if action == "read" else {}
    if action == "track":
        track(kind, folder)
    else:
        found = {"wandb": read_wandb, "mlflow": read_mlflow, "trackio": read_trackio}[kind](folder)
        print(json.dumps(found | {"note": json.loads((folder / f"tracker-{kind}.json").read_text())}))
