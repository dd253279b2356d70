"""tpu_pod.sh against a fake gcloud whose workers really run the commands."""

import json
import os
import signal
import subprocess

import pytest

from tests.launch.conftest import COMMAND, GIT, SETTINGS
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.slow


def test_up_run_status_logs_down(pod):
    pod.script(trainings=["until stopped"])
    pod.settings("--config.a=two words", **SETTINGS | {"WORKDIR": SETTINGS["WORKDIR"] + "/"})
    up = pod("up")
    assert up.returncode == 0, up.stderr
    states = [line.split()[3] for line in up.stderr.splitlines() if "pod is" in line]
    assert states == ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    [request] = pod.calls("create")
    assert {"--spot", "--node-id=pod", "--accelerator-type=v4-16", "--project=project", "--zone=zone-b"} <= set(request)

    done = pod("run")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: pod.attempts(0) and pod.attempts(1))
    assert pod.attempts(0) == pod.attempts(1) == [COMMAND]
    assert (pod.cloud / "pip1").read_text().splitlines() == [
        "install --quiet --require-hashes --no-deps -r code/launch/requirements-tpu.lock",
        "install --quiet --no-deps --no-build-isolation ./code",
    ]
    status = pod("status")
    assert "pod: ACTIVE\n" in status.stdout and "workers: running\n" in status.stdout

    again = pod("run")
    assert again.returncode == 0 and "already running" in again.stderr
    assert len(pod.attempts()) == 1

    assert pod("down").returncode == 0
    assert not pod.exists()
    assert list((pod.bucket / "worker_logs").glob("*.log")), "SIGTERM reached the training, and its log outlives the VM"
    assert "pod: NONE\n" in pod("status").stdout


def test_exit_codes_are_reported_and_a_commit_is_installed_once(pod):
    pod.script(trainings=[75, 0])
    for code in (75, 0):
        assert pod("up").returncode == pod("run").returncode == 0
        wait_until(lambda code=code: f"workers: {code}\n" in pod("status").stdout)
    assert len(pod.calls("create")) == 1
    assert pod.installations() == 1
    logs = pod("logs", WORKER="1")
    assert logs.stdout == "bertjax: this was attempt 75\nbertjax: this was attempt 0\n"
    assert len(pod("logs", WORKER="all").stdout.splitlines()) == 4


def test_only_committed_files_run(pod):
    pod.script(trainings=[0])
    assert pod("up").returncode == 0
    for command, file in (("babysit", "launch/requirements-tpu.lock"), ("run", "configs/some.py")):
        (pod.repository / file).write_text("changed since the commit")
        refused = pod(command)
        assert refused.returncode == 2 and "files differ from REF=HEAD" in refused.stderr
    subprocess.run([*GIT, "checkout", "-q", "launch"], cwd=pod.repository, check=True)
    subprocess.run([*GIT, "stash", "-q"], cwd=pod.repository, check=True)
    assert pod("run").returncode == 0
    subprocess.run([*GIT, "stash", "pop", "-q"], cwd=pod.repository, check=True)
    code = pod.cloud / "workers/pod/0/bertjax/code"
    assert (code / "configs" / "some.py").read_text() != "changed since the commit"
    commit = subprocess.run([*GIT, "rev-parse", "HEAD"], cwd=pod.repository, capture_output=True, text=True)
    assert (code / "bertjax" / "COMMIT").read_text() == commit.stdout
    subprocess.run([*GIT, "commit", "-qam", "Changed."], cwd=pod.repository, check=True)
    wait_until(lambda: "workers: 0\n" in pod("status").stdout)
    pod.script(trainings=[0, 0])
    assert pod("run").returncode == 0
    assert (code / "configs" / "some.py").read_text() == "changed since the commit"
    assert pod.installations() == 2


def test_workers_get_variables_and_requests_get_flags(pod):
    settings = pod.repository / "launch" / "pod.env"
    lines = ["ENVIRONMENT=(A_FLAG='--one=1 --two=2' SECRET=xyz B=)", "CREATE_FLAGS=(--network=mine --internal-ips)"]
    settings.write_text("\n".join([settings.read_text(), *lines]))
    assert pod("up").returncode == 0
    assert {"--network=mine", "--internal-ips"} <= set(pod.calls("create")[0])
    pod.script(trainings=[0])
    assert pod("run").returncode == 0
    wait_until(lambda: "workers: 0\n" in pod("status").stdout)
    assert "xyz" not in str(pod.calls()), "others see command lines"
    environments = [pod.cloud / f"workers/pod/{worker}/bertjax/code/environment" for worker in (0, 1)]
    assert [file.stat().st_mode & 0o077 for file in environments] == [0, 0]
    [variables] = [json.loads(line) for line in (pod.cloud / "environments0").read_text().splitlines()]
    assert variables | {"A_FLAG": "--one=1 --two=2", "SECRET": "xyz", "B": ""} == variables
    settings.write_text("\n".join([settings.read_text(), "ENVIRONMENT=(A-B=1)"]))
    refused = pod("run")
    assert refused.returncode == 2 and "'A-B=1', not NAME=VALUE" in refused.stderr


def test_no_call_reads_the_terminal_and_ctrl_c_ends_the_script_at_once(pod):
    assert pod("up").returncode == 0
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
    controller, terminal = os.openpty()
    try:
        status = pod.start("status", stdin=terminal)
        assert "workers: absent\n" in status.communicate(timeout=LIMIT_SECONDS)[0]
        before = len(pod.calls("describe"))
        pod.script(describe=["hang"])
        process = pod.start("up", stdin=terminal)
        wait_until(lambda: len(pod.calls("describe")) > before)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=LIMIT_SECONDS) == 130
    finally:
        os.close(controller)
        os.close(terminal)
        signal.signal(signal.SIGINT, handler)


def test_bad_settings_are_one_line_each_and_nothing_is_called(pod):
    for change, fragment in (
        ({"ZONE": ""}, "ZONE is not set in "),
        ({"WORKDIR": "/home/me/run"}, "WORKDIR=/home/me/run"),
    ):
        pod.settings(**{**SETTINGS, **change})
        done = pod("babysit")
        assert done.returncode == 2
        assert fragment in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (pod.cloud / "calls").exists()
