"""The YAML files fit their schemas and treat exit codes as launch/README.md documents."""

import json
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

HERE, LAUNCH = Path(__file__).parent, Path(__file__).parents[2] / "launch"


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


def test_a_misplaced_field_is_rejected():
    broken = read("gke_jobset.yaml")
    template = broken["spec"]["replicatedJobs"][0]["template"]
    template["podFailurePolicy"] = template["spec"].pop("podFailurePolicy")
    with pytest.raises(jsonschema.ValidationError, match="podFailurePolicy"):
        check("jobset.json", broken)


def test_only_bad_input_fails_the_jobset():
    spec, job, container = jobset()
    [rule] = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    exits = {"containerName": container["name"], "operator": "In", "values": [2]}
    assert rule["onExitCodes"] == exits
    [rule] = spec["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert spec["failurePolicy"]["maxRestarts"] > 0
    assert job["template"]["spec"]["restartPolicy"] == "Never" and job["backoffLimit"] == 0


def test_the_pods_request_all_chips_of_the_slice():
    _, job, container = jobset()
    columns, rows = map(int, job["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x"))
    chips = container["resources"]["requests"]["google.com/tpu"]
    assert chips == container["resources"]["limits"]["google.com/tpu"]
    assert job["parallelism"] == job["completions"] == columns * rows // chips


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


def test_the_image_copies_existing_files():
    copied = re.findall(r"^COPY (.*) \S+$", (LAUNCH / "Dockerfile").read_text(), re.MULTILINE)
    assert all((LAUNCH.parent / name).exists() for line in copied for name in line.split())


def test_skypilot_restarts_only_after_exit_code_75():
    recovery = read("skypilot.yaml")["resources"]["job_recovery"]
    assert recovery == {"recover_on_exit_codes": [75], "max_restarts_on_errors": 0}


def test_skypilots_commands_are_shell(tmp_path):
    task = read("skypilot.yaml")
    for part in ("setup", "run"):
        assert subprocess.run(["bash", "-n"], input=task[part], text=True).returncode == 0
    python = tmp_path / "bertjax-venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 75\n')
    python.chmod(0o755)
    environment = {"HOME": str(tmp_path), "CONFIG": "configs/a b.py", "WORKDIR": "gs://bucket/run"}
    done = subprocess.run(["bash", "-c", task["run"]], env=environment, capture_output=True, text=True)
    assert done.returncode == 75, "the job's exit code is the training's"
    flags = ["--distributed", "--config=configs/a b.py", "--workdir=gs://bucket/run"]
    assert done.stdout.splitlines() == ["-m", "bertjax.train", *flags]
