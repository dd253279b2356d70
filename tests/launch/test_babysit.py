"""tpu_pod.sh babysit: what it repeats, what it gives up on, and what it leaves behind."""

import shutil
import subprocess

import pytest

from tests.launch.conftest import COMMAND, LOGGED_OUT, LOGIN, executable
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.slow


def test_babysit_outlives_what_is_no_failure_of_the_training(pod):
    """Refused, failed and suspended requests, an expired login, an installation that is cut short, and preemptions."""
    refused = ["RESOURCE_EXHAUSTED: quota", "INTERNAL: try again"]
    cut_short = ["ACTIVE", "ACTIVE", "SUSPENDED"]  # the workers see one connection, and then they are gone
    requests = [["FAILED"], ["PROVISIONING", "SUSPENDING", "SUSPENDED"], cut_short]
    trainings = ["preempted", "vm preempted", 75, 0]
    pod.script(create=refused, requests=requests, ssh=[0, 255], describe=["", LOGGED_OUT], trainings=trainings)
    done = pod("babysit", MAX_FAILURES="1", MAX_STOPS="2")
    assert done.returncode == 0, done.stderr
    assert pod.attempts(0) == pod.attempts(1) == [COMMAND] * len(trainings)
    assert len(pod.calls("create")) == len(refused + requests) + 3, "75 does not need a new TPU"
    assert pod.installations() == 3, "a new VM has nothing installed"
    assert done.stderr.count("this is not a failure of the training") == len(refused)
    assert done.stderr.count(LOGIN) == 1 and "active account" not in done.stderr
    assert not pod.exists()


@pytest.mark.parametrize("code, reason", [(2, "bad input"), (3, "failed twice at the same step")])
def test_babysit_stops_at_what_would_fail_again_and_leaves_no_tpu(pod, code, reason):
    pod.script(trainings=[[0, code, code]])
    done = pod("babysit")
    assert done.returncode == code
    assert f"bertjax: this was attempt {code}" in done.stdout
    assert reason in done.stderr and "gs://bucket/runs/pod/worker_logs" in done.stderr
    assert not pod.exists() and len(pod.attempts()) == 1


def test_failures_are_counted_only_while_the_newest_checkpoint_does_not_move(pod):
    pod.script(trainings=[[0, 1, 1], [10, 1, 134], [9, 1, 1], [0, 1, 1]])
    done = pod("babysit", MAX_FAILURES="2")
    assert done.returncode == 1
    assert len(pod.attempts()) == 4, "an older checkpoint is no progress"
    assert "giving up after 2 ends in a row without a new checkpoint" in done.stderr
    assert len(pod.calls("create")) == 1 and not pod.exists()


# In place of `timeout` for calls of gcloud: only the one that never answers has a limit, others may be slow.
TIMEOUT = r"""#!/bin/sh
case "$*" in
  *"queued-resources describe"*) ! grep -q '"describe": \["hang"' "$FAKE_CLOUD/script" || exec {timeout} "$@" ;;
  *gcloud*) ;;
  *) exec {timeout} "$@" ;;
esac
shift 2
exec "$@"
"""


def test_a_call_that_never_returns_is_ended(pod):
    executable(pod.cloud / "tools" / "timeout", TIMEOUT.format(timeout=shutil.which("timeout")))
    pod.script(describe=["", "hang"], trainings=[0])
    done = pod("babysit", QUICK="3")
    assert done.returncode == 0, done.stderr
    assert "no answer within 3 s from: gcloud compute tpus queued-resources describe" in done.stderr


@pytest.mark.parametrize("hanging", ["hanging", "hanging seed"])
def test_a_training_without_a_sign_of_life_is_restarted(pod, hanging):
    # A training that takes longer than that to start on a slow machine is restarted too.
    pod.script(trainings=[hanging, *[0] * 5])
    done = pod("babysit", HANG_SECONDS="5", STOP_SECONDS="1", MAX_FAILURES="1000")
    assert done.returncode == 0, done.stderr
    assert 'no sign of life: {"step": 5' in done.stderr and "hanging" in done.stderr
    assert len(pod.attempts(0)) >= 2 and len(pod.attempts(1)) >= 2 and len(pod.calls("create")) == 1


def test_babysit_stops_workers_that_hang_after_another_failed(pod):
    pod.script(trainings=["partly", 0])
    done = pod("babysit", PATIENCE="3")
    assert done.returncode == 0, done.stderr
    assert "failed (1 running; partly)" in done.stderr
    assert len(pod.attempts(0)) == len(pod.attempts(1)) == 2
    assert len(pod.calls("create")) == 1


def test_babysit_replaces_a_tpu_that_does_not_answer(pod):
    # The first five connections look, make room, install, start and look.
    pod.script(trainings=["until stopped", 0], ssh=[0] * 5 + [255] * 3)
    done = pod("babysit", PATIENCE="3")
    assert done.returncode == 0, done.stderr
    assert "no worker answers: ssh: connect to host" in done.stderr
    assert len(pod.calls("create")) == 2


def test_babysit_joins_a_running_training(pod):
    pod.script(trainings=["until stopped", 0])
    assert pod("up").returncode == pod("run").returncode == 0
    wait_until(lambda: pod.attempts(0) and pod.attempts(1))
    process = pod.start("babysit")
    try:
        wait_until(lambda: len(pod.calls("ssh")) > 8)
        assert len(pod.attempts()) == 1
        for worker in (0, 1):
            pid = (pod.cloud / f"workers/pod/{worker}/bertjax/pid").read_text().strip()
            subprocess.run(["kill", "-TERM", pid], check=True)
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert len(pod.attempts()) == 2
