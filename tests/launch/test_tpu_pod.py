"""tpu_pod.sh against a fake gcloud whose workers really run the commands."""

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.launch.conftest import GIT, SETTINGS, executable

COMMAND = ["-m", "bertjax.train", "--distributed", "--config=configs/some.py:small", "--workdir=gs://bucket/runs/pod"]
COMMAND += ["--config.a=two words"]


LOGGED_OUT = """You do not currently have an active account selected.
Please run:

  $ gcloud auth login

to obtain new credentials."""
LOGIN = "gcloud is not logged in, or its login has expired; run: gcloud auth login"


def wait(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_up_run_status_logs_down(pod):
    pod.script(trainings=["until stopped"])
    up = pod("up")
    assert up.returncode == 0, up.stderr
    states = [line.split()[3] for line in up.stderr.splitlines() if "pod is" in line]
    assert states == ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    [request] = pod.calls("create")
    assert {"--spot", "--node-id=pod", "--accelerator-type=v4-16", "--project=project", "--zone=zone-b"} <= set(request)

    done = pod("run")
    assert done.returncode == 0, done.stderr
    wait(lambda: pod.attempts(0) and pod.attempts(1))
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
        wait(lambda code=code: f"workers: {code}\n" in pod("status").stdout)
    assert len(pod.calls("create")) == 1
    assert pod.installations() == 1
    logs = pod("logs", WORKER="1")
    assert logs.stdout == "bertjax: this was attempt 75\nbertjax: this was attempt 0\n"
    assert len(pod("logs", WORKER="all").stdout.splitlines()) == 4


def test_only_committed_files_run(pod):
    (pod.repository / "configs" / "some.py").write_text("changed since the commit")
    pod.script(trainings=[0])
    assert pod("up").returncode == 0
    for command in ("run", "babysit"):
        refused = pod(command)
        assert refused.returncode == 2 and "files differ from REF=HEAD" in refused.stderr
    subprocess.run([*GIT, "stash", "-q"], cwd=pod.repository, check=True)
    assert pod("run").returncode == 0
    subprocess.run([*GIT, "stash", "pop", "-q"], cwd=pod.repository, check=True)
    code = pod.cloud / "workers/pod/0/bertjax/code"
    assert (code / "configs" / "some.py").read_text() != "changed since the commit"
    commit = subprocess.run([*GIT, "rev-parse", "HEAD"], cwd=pod.repository, capture_output=True, text=True)
    assert (code / "bertjax" / "COMMIT").read_text() == commit.stdout
    subprocess.run([*GIT, "commit", "-qam", "Changed."], cwd=pod.repository, check=True)
    wait(lambda: "workers: 0\n" in pod("status").stdout)
    pod.script(trainings=[0, 0])
    assert pod("run").returncode == 0
    assert (code / "configs" / "some.py").read_text() == "changed since the commit"
    assert pod.installations() == 2


def test_workers_get_variables_and_requests_get_flags(pod):
    settings = pod.repository / "launch" / "pod.env"
    lines = ["ENVIRONMENT=(A_FLAG='--one=1 --two=2' B=)", "CREATE_FLAGS=(--network=mine --internal-ips)"]
    settings.write_text("\n".join([settings.read_text(), *lines]))
    assert pod("up").returncode == 0
    assert {"--network=mine", "--internal-ips"} <= set(pod.calls("create")[0])
    pod.script(trainings=[0])
    assert pod("run").returncode == 0
    wait(lambda: "workers: 0\n" in pod("status").stdout)
    [started] = [call for call in pod.calls("ssh") if any(" start " in argument for argument in call)]
    [command] = [argument for argument in started if " start " in argument]
    assert shlex.split(command.removeprefix("--command="))[:3] == ["env", "A_FLAG=--one=1 --two=2", "B="]
    settings.write_text("\n".join([settings.read_text(), "ENVIRONMENT=(A-B=1)"]))
    refused = pod("run")
    assert refused.returncode == 2 and "'A-B=1', not NAME=VALUE" in refused.stderr


def test_on_demand_requests_no_spot_vm(pod):
    pod.settings(**SETTINGS, SPOT="no")
    assert pod("up").returncode == 0
    assert "--spot" not in pod.calls("create")[0]


def test_run_without_a_tpu_asks_for_up_first(pod):
    done = pod("run")
    assert done.returncode == 1 and "pod is NONE; run tpu_pod.sh up first" in done.stderr


def test_a_failed_request_prints_its_reason(pod):
    pod.script(requests=[["WAITING_FOR_RESOURCES", "FAILED"]])
    done = pod("up")
    assert done.returncode == 75 and "no quota is left" in done.stderr
    assert pod("up").returncode == 0, "a failed request is replaced"
    assert len(pod.calls("delete")) == 1


def test_babysit_continues_after_preemptions(pod):
    pod.script(trainings=["preempted", "vm preempted", 75, 0])
    done = pod("babysit")
    assert done.returncode == 0, done.stderr
    assert pod.attempts(0) == pod.attempts(1) == [COMMAND] * 4
    assert done.stderr.count("preempted or stopped (gone)") == 2 and "no worker answers" not in done.stderr
    assert len(pod.calls("create")) == 3, "75 does not need a new TPU"
    assert pod.installations() == 3, "a new VM has nothing installed"
    assert not pod.exists()


def test_babysit_survives_failed_and_suspended_requests(pod):
    active = ["ACTIVE"]
    pod.script(requests=[["FAILED"], ["PROVISIONING", "SUSPENDING", "SUSPENDED"], active], trainings=[0])
    done = pod("babysit", MAX_FAILURES="1")
    assert done.returncode == 0, done.stderr
    assert len(pod.calls("create")) == 3


def test_a_preemption_during_the_installation_is_not_a_failure(pod):
    # The workers see one connection, and then they are gone.
    pod.script(requests=[["ACTIVE", "ACTIVE", "SUSPENDED"], ["ACTIVE"]], ssh=[0, 255], trainings=[0])
    done = pod("babysit", MAX_FAILURES="1")
    assert done.returncode == 0, done.stderr
    assert len(pod.calls("create")) == 2


def test_a_failed_installation_is_a_failure(pod):
    executable(pod.cloud / "tools" / "pipx", "#!/bin/sh\nexit 1\n")
    done = pod("babysit", MAX_FAILURES="2")
    assert done.returncode == 1
    assert "the training failed (not started" in done.stderr and "giving up after 2 ends" in done.stderr


@pytest.mark.parametrize("code, reason", [(2, "bad input"), (3, "failed twice at the same step")])
def test_babysit_stops_at_what_would_fail_again_and_leaves_no_tpu(pod, code, reason):
    pod.script(trainings=[[0, code, code]])
    done = pod("babysit")
    assert done.returncode == code
    assert f"bertjax: this was attempt {code}" in done.stdout
    assert reason in done.stderr and "gs://bucket/runs/pod/worker_logs" in done.stderr
    assert not pod.exists() and len(pod.attempts()) == 1


def test_a_tpu_is_kept_after_a_failure_if_the_settings_ask_for_it(pod):
    pod.settings(**SETTINGS, AFTER_FAILURE="keep")
    pod.script(trainings=[2])
    done = pod("babysit")
    assert done.returncode == 2 and pod.exists() and "then run tpu_pod.sh down" in done.stderr


def test_one_worker_with_bad_input_does_not_decide_for_all(pod):
    pod.script(trainings=[[0, 2, 134], [0, 75, 2], [0, 0, 0]])
    done = pod("babysit")
    assert done.returncode == 0, done.stderr
    assert "the training failed (134 2; failed)" in done.stderr and len(pod.attempts()) == 3
    assert "2 failures and 0 stops in a row without a new checkpoint" in done.stderr


def test_failures_are_counted_only_while_the_newest_checkpoint_does_not_move(pod):
    pod.script(trainings=[[0, 1, 1], [10, 1, 134], [9, 1, 1], [0, 1, 1]])
    done = pod("babysit", MAX_FAILURES="2")
    assert done.returncode == 1
    assert len(pod.attempts()) == 4, "an older checkpoint is no progress"
    assert "giving up after 2 ends in a row without a new checkpoint" in done.stderr
    assert len(pod.calls("create")) == 1 and not pod.exists()


def test_a_refused_request_is_repeated_without_a_limit(pod):
    pod.script(create=["RESOURCE_EXHAUSTED: quota", "INTERNAL: try again"] * 4, trainings=[0])
    done = pod("babysit", MAX_FAILURES="1", MAX_STOPS="1")
    assert done.returncode == 0, done.stderr
    assert len(pod.calls("create")) == 9
    assert done.stderr.count("this is not a failure of the training") == 8 and "INTERNAL: try again" in done.stderr


@pytest.mark.parametrize("command", ["up", "babysit"])
def test_a_wrong_request_is_not_repeated(pod, command):
    pod.script(create=["INVALID_ARGUMENT: no such accelerator type\nread the reference"])
    done = pod(command)
    assert done.returncode == 2 and len(pod.calls("create")) == 1
    line = (
        "the request is wrong (INVALID_ARGUMENT: no such accelerator type); correct ACCELERATOR_TYPE, RUNTIME_VERSION"
    )
    assert done.stderr.splitlines()[-1] == f"tpu_pod: {line} or ZONE"


@pytest.mark.parametrize("command", ["up", "run", "status", "logs", "down", "babysit"])
def test_without_a_login_each_command_is_one_line(pod, command):
    pod.script(login=[LOGGED_OUT])
    done = pod(command)
    assert done.returncode == 2 and done.stderr == f"tpu_pod: {LOGIN}\n" and not pod.calls("compute")


def test_babysit_continues_after_a_login_that_expires(pod):
    pod.script(describe=["", LOGGED_OUT], trainings=[0])
    done = pod("babysit")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(LOGIN) == 1 and "active account" not in done.stderr


@pytest.mark.parametrize("command, code", [("up", 75), ("babysit", 1)])
def test_a_cloud_that_cannot_be_asked_is_named(pod, command, code):
    pod.script(login=["UNAVAILABLE: no network"], describe=["PERMISSION_DENIED: no such project"])
    done = pod(command)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == (
        "tpu_pod: gcloud cannot tell whether pod exists, see above; check PROJECT and ZONE, then run this again"
    )


def test_no_call_reads_the_terminal_and_ctrl_c_ends_the_script_at_once(pod):
    assert pod("up").returncode == 0
    controller, terminal = os.openpty()
    try:
        status = pod.start("status", stdin=terminal)
        assert "workers: absent\n" in status.communicate(timeout=60)[0]
        before = len(pod.calls("describe"))
        pod.script(describe=["hang"])
        process = pod.start("up", stdin=terminal)
        wait(lambda: len(pod.calls("describe")) > before)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=10) == 130
    finally:
        os.close(controller)
        os.close(terminal)


def test_a_call_that_never_returns_is_ended(pod):
    pod.script(describe=["", "hang"], trainings=[0])
    done = pod("babysit", QUICK="1")
    assert done.returncode == 0, done.stderr
    assert "no answer within 1 s from: gcloud compute tpus queued-resources describe" in done.stderr


def test_a_training_without_a_sign_of_life_is_restarted(pod):
    pod.script(trainings=["hanging", 0])
    done = pod("babysit", HANG_SECONDS="1", STOP_SECONDS="1")
    assert done.returncode == 0, done.stderr
    assert 'no sign of life: {"step": 5' in done.stderr and "hanging" in done.stderr
    assert len(pod.attempts(0)) == len(pod.attempts(1)) == 2 and len(pod.calls("create")) == 1


def test_logs_leave_the_worker_while_it_runs(pod):
    pod.script(trainings=["until stopped"])
    assert pod("up").returncode == pod("run", LOG_SECONDS="0.1").returncode == 0
    wait(lambda: len(list((pod.bucket / "worker_logs").glob("*.log"))) > 0)
    assert "workers: running\n" in pod("status").stdout


def test_the_backoff_doubles_up_to_a_limit(pod):
    executable(pod.cloud / "tools" / "sleep", f'#!/bin/sh\necho "$1" >>{pod.cloud / "slept"}\nexec /bin/sleep 0.05\n')
    pod.script(trainings=[1] * 4)
    assert pod("babysit", BACKOFF="30", BACKOFF_LIMIT="50", MAX_FAILURES="4").returncode == 1
    slept = (pod.cloud / "slept").read_text().split()
    assert [pause for pause in slept if pause not in ("0.05", "300")] == ["30", "50", "50"], "300: between two logs"


def test_babysit_stops_workers_that_hang_after_another_failed(pod):
    pod.script(trainings=["partly", 0])
    done = pod("babysit")
    assert done.returncode == 0, done.stderr
    assert "failed (1 running; partly)" in done.stderr
    assert len(pod.attempts(0)) == len(pod.attempts(1)) == 2
    assert len(pod.calls("create")) == 1


def test_babysit_replaces_a_tpu_that_does_not_answer(pod):
    # The first five connections look, make room, install, start and look.
    pod.script(trainings=["until stopped", 0], ssh=[0] * 5 + [255] * 4)
    done = pod("babysit")
    assert done.returncode == 0, done.stderr
    assert "no worker answers: ssh: connect to host" in done.stderr
    assert len(pod.calls("create")) == 2


def test_a_lost_network_does_not_stop_the_training(pod):
    # Three checks until the request, three until the TPU is ready, one before the start, two of the training.
    lost = [""] * 9 + ["UNAVAILABLE: no network"] * 4
    pod.script(trainings=["until stopped"], describe=lost)
    process = pod.start("babysit")
    try:
        wait(lambda: pod.attempts(1) and len(pod.calls("describe")) > len(lost) + 8)
        assert process.poll() is None
        pod.script(trainings=["until stopped"])
    finally:
        process.kill()
        _, errors = process.communicate()
    assert "no network" in errors and "continuing" not in errors
    assert len(pod.attempts()) == 1 and not pod.calls("delete")

    finished = pod("status")
    assert "workers: running\n" in finished.stdout, "a babysitter that was killed leaves the training alone"


def test_babysit_joins_a_running_training(pod):
    pod.script(trainings=["until stopped", 0])
    assert pod("up").returncode == pod("run").returncode == 0
    wait(lambda: pod.attempts(0) and pod.attempts(1))
    process = pod.start("babysit")
    try:
        wait(lambda: len(pod.calls("ssh")) > 8)
        assert len(pod.attempts()) == 1
        for worker in (0, 1):
            pid = (pod.cloud / f"workers/pod/{worker}/bertjax/pid").read_text().strip()
            subprocess.run(["kill", "-TERM", pid], check=True)
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert len(pod.attempts()) == 2


def test_babysit_does_not_restore_a_tpu_that_someone_deleted(pod):
    pod.script(trainings=["until stopped"])
    process = pod.start("babysit")
    try:
        wait(lambda: pod.attempts(0) and pod.attempts(1))
        (pod.cloud / "pod.json").unlink()
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 1 and "was deleted by someone else" in errors
    assert len(pod.calls("create")) == 1


def test_a_rebooted_worker_is_started_again(pod):
    pod.script(trainings=["until stopped", 0])
    process = pod.start("babysit")
    try:
        wait(lambda: pod.attempts(0) and pod.attempts(1))
        for worker in (0, 1):
            pid = (pod.cloud / f"workers/pod/{worker}/bertjax/pid").read_text().strip()
            subprocess.run(["kill", "-KILL", "--", f"-{pid}"], check=True)
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert len(pod.attempts(0)) == len(pod.attempts(1)) == 2


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_required(pod, name):
    pod.settings(**{**SETTINGS, name: ""})
    done = pod("up")
    assert done.returncode == 2
    assert f"{name} is not set in " in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "change, fragment",
    [
        ({"SPOT": "maybe"}, "SPOT=maybe"),
        ({"WORKDIR": "/home/me/run"}, "WORKDIR=/home/me/run"),
        ({"CONFIG": "configs/absent.py"}, "CONFIG=configs/absent.py"),
        ({"AFTER_FAILURE": "maybe"}, "AFTER_FAILURE=maybe"),
        ({"REF": "absent"}, "REF=absent"),
    ],
)
def test_a_bad_setting_is_one_line(pod, change, fragment):
    pod.settings(**{**SETTINGS, **change})
    done = pod("babysit")
    assert done.returncode == 2
    assert fragment in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (pod.cloud / "calls").exists()


def test_bad_commands(pod):
    for command in [(), ("start",), ("up", "a", "b")]:
        done = pod(*command)
        assert done.returncode == 2 and "usage: tpu_pod.sh up|run|status|logs|down|babysit" in done.stderr
    assert pod("--help").stdout.startswith("usage: tpu_pod.sh")
    done = pod("up", "absent.env")
    assert done.returncode == 2 and "pod.env.example" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_missing_gcloud_is_one_line_with_its_address(pod, tmp_path):
    path = tmp_path / "bin"
    path.mkdir()
    for tool in ("bash", "dirname", "mktemp", "rm"):
        program = next(Path(folder) / tool for folder in ("/usr/bin", "/bin") if (Path(folder) / tool).exists())
        (path / tool).symlink_to(program)
    done = pod("up", PATH=str(path))
    assert done.returncode == 2
    assert "gcloud is not installed; see https://" in done.stderr and len(done.stderr.splitlines()) == 1
