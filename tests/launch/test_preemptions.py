"""A real run that tpu_pod.sh babysit carries through preemptions ends with the bits of one that nothing disturbed."""

import subprocess

import pytest

from tests import runs
from tests.launch import preemptions
from tests.launch.conftest import GIT

# One of each kind; `tests.launch.preemptions` tries 100.
EVENTS = [("steps", 5), ("seconds", 3.0), ("warned", 4)]


@pytest.mark.slow
def test_preemptions_and_equal_bit_for_bit(flags, undisturbed, tmp_path):
    pod, code, errors = preemptions.preempt(tmp_path, flags, EVENTS)
    assert code == 0, errors
    assert len(pod.preempted()) == len(EVENTS) and len(pod.calls("create")) == len(EVENTS) + 1 and not pod.exists()
    assert runs.weights(pod.bucket) == runs.weights(undisturbed)
    assert runs.losses(pod.bucket) == runs.losses(undisturbed)

    commit = subprocess.run([*GIT, "rev-parse", "HEAD"], cwd=pod.repository, capture_output=True, text=True).stdout
    starts = runs.records(pod.bucket / "starts.jsonl")
    assert {start["versions"]["bertjax"] for start in starts} == {commit.strip()}
    assert list((pod.bucket / "worker_logs").glob("*.log"))
