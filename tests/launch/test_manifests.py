"""The YAML files fit their schemas and treat exit codes as launch/README.md documents."""

import importlib.util
import json
import os
import re
import subprocess
import time
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.launch.conftest import executable

HERE, LAUNCH = Path(__file__).parent, Path(__file__).parents[2] / "launch"
_spec = importlib.util.spec_from_file_location("alive", LAUNCH / "alive.py")
alive = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(alive)


def read(name: str) -> dict:
    return yaml.safe_load((LAUNCH / name).read_text())


def check(name: str, content: dict) -> None:
    jsonschema.validate(content, json.loads((HERE / "schemas" / name).read_text()))


def jobset() -> tuple[dict, dict, dict]:
    """Return the specs of the set and of its job, and the container."""
    spec = read("gke_jobset.yaml")["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    return spec, job, job["template"]["spec"]["containers"][0]


def test_the_files_fit_their_schemas():
    check("jobset.json", read("gke_jobset.yaml"))
    check("skypilot.json", read("skypilot.yaml"))


def test_only_what_would_fail_again_fails_the_jobset():
    spec, job, container = jobset()
    final, preempted = job["podFailurePolicy"]["rules"]
    assert final["action"] == preempted["action"] == "FailJob"
    assert final["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [2, 3]}
    assert preempted["onPodConditions"] == [{"type": "DisruptionTarget"}]
    rules = spec["failurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["FailJobSet", "RestartJobSetAndIgnoreMaxRestarts"]
    for index, rule in enumerate(rules):
        assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
        # How Kubernetes ends the message of a job that its podFailurePolicy failed.
        [pattern] = rule["onJobFailureMessagePatterns"]
        assert re.search(pattern, f"failed with exit code 2 matching FailJob rule at index {index}")
        assert not re.search(pattern, f"failed with exit code 2 matching FailJob rule at index {1 - index}")
    assert spec["failurePolicy"]["maxRestarts"] > 0
    assert job["template"]["spec"]["restartPolicy"] == "Never" and job["backoffLimit"] == 0


def test_the_probe_reads_the_workdir_of_the_training():
    _, job, container = jobset()
    python, script, workdir = container["livenessProbe"]["exec"]["command"]
    assert python == "python" and f"--workdir={workdir}" in container["args"]
    assert f"COPY {script} " in (LAUNCH / "Dockerfile").read_text()
    [volume] = job["template"]["spec"]["volumes"]
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/dev/shm"}]
    assert volume["emptyDir"] == {"medium": "Memory"}


def test_the_coordinator_port_is_the_one_of_jax():
    cluster = pytest.importorskip("jax._src.clusters.cloud_tpu_cluster")
    ports = [port["containerPort"] for port in jobset()[2]["ports"]]
    assert int(cluster.coordinator_port) in ports


def test_the_image_and_the_jobset_make_one_command():
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", (LAUNCH / "Dockerfile").read_text(), re.MULTILINE)
    command = [*json.loads(entry), *jobset()[2]["args"]]
    assert command[:4] == ["python", "-m", "bertjax.train", "--distributed"]
    assert [flag.split("=")[0] for flag in command[4:]] == ["--config", "--workdir"]
    assert command[-1].startswith("--workdir=gs://")


def test_skypilot_restarts_only_after_exit_code_75():
    recovery = read("skypilot.yaml")["resources"]["job_recovery"]
    assert recovery == {"recover_on_exit_codes": [75], "max_restarts_on_errors": 0}


def test_skypilots_command_exits_with_75_after_what_may_pass(tmp_path):
    task = read("skypilot.yaml")
    for part in ("setup", "run"):
        assert subprocess.run(["bash", "-n"], input=task[part], text=True).returncode == 0
    executable(tmp_path / "bertjax-venv" / "bin" / "python", '#!/bin/sh\nprintf "%s\\n" "$@"\nexit $CODE\n')

    def run(code: int) -> int:
        run_settings = {"CONFIG": "configs/a b.py", "WORKDIR": str(tmp_path / "run"), "CODE": str(code)}
        environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "MAX_FAILURES": "2", **run_settings}
        command = ["bash", "-c", task["run"]]
        done = subprocess.run(command, env=environment, cwd=LAUNCH.parent, capture_output=True, text=True)
        flags = ["--distributed", "--config=configs/a b.py", f"--workdir={tmp_path / 'run'}"]
        assert done.stdout.splitlines()[:5] == ["-m", "bertjax.train", *flags], done.stderr
        return done.returncode

    assert [run(code) for code in (0, 2, 3, 75, 1, 134)] == [0, 2, 3, 75, 75, 134], "two failures are the limit here"


def folder_of_processes(folder: Path, boot: int, ticks: int) -> Path:
    """Write what alive.py reads of /proc."""
    (folder / "1").mkdir(parents=True)
    (folder / "stat").write_text(f"cpu 1 2\nbtime {boot}\n")
    (folder / "1" / "stat").write_text(f"1 (a b) c) S {' '.join(['0'] * 18)} {ticks} 0\n")
    return folder


def test_the_probe_fails_when_a_heartbeat_is_too_old_for_its_state(tmp_path, monkeypatch):
    limit = alive.HANG_SECONDS
    assert f"HANG_SECONDS=${{HANG_SECONDS:-{limit}}}" in (LAUNCH / "tpu_pod.sh").read_text()
    for state, seconds in (("training", limit), ("compiling", 3 * limit)):
        beat = {"time": 10_000.0, "state": state}
        assert alive.is_alive(beat, start=0.0, now=10_000.0 + seconds)
        assert not alive.is_alive(beat, start=0.0, now=10_001.0 + seconds)
        assert alive.is_alive(beat, start=10_001.0, now=10_001.0 + 3 * limit), "it is of the attempt before"
        assert not alive.is_alive(beat, start=10_001.0, now=10_002.0 + 3 * limit)

    start = alive.started(folder_of_processes(tmp_path / "proc", boot=1000, ticks=5 * os.sysconf("SC_CLK_TCK")))
    assert start == 1005
    monkeypatch.setattr(alive, "started", lambda: start)
    heartbeat = tmp_path / "heartbeat.json"
    assert alive.main(str(tmp_path)) == 0, "no heartbeat is no sign of a hang"
    heartbeat.write_text('{"step": 3, "ti')
    assert alive.main(str(tmp_path)) == 0, "nor is half of one"
    for age, code in ((0, 0), (2 * limit, 1)):
        heartbeat.write_text(json.dumps({"step": 3, "time": time.time() - age, "state": "training", "steps": 9}))
        assert alive.main(str(tmp_path)) == code
    heartbeat.unlink()
    for seed, age in ((0, 9 * limit), (1, 2 * limit)):
        (tmp_path / f"seed={seed}").mkdir()
        beat = {"step": 3, "time": time.time() - age, "state": "training", "steps": 9}
        (tmp_path / f"seed={seed}" / "heartbeat.json").write_text(json.dumps(beat))
    assert alive.main(str(tmp_path)) == 1, "a seed that hangs"
    beat["time"] = time.time()
    (tmp_path / "seed=1" / "heartbeat.json").write_text(json.dumps(beat))
    assert alive.main(str(tmp_path)) == 0, "one seed trains, and the others are finished or wait"
