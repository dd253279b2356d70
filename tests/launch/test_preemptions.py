"""A real run that tpu_pod.sh babysit carries through preemptions ends with the bits of one that nothing disturbed."""

import subprocess

import pytest

from tests import runs
from tests.launch import preemptions
from tests.launch.conftest import GIT


@pytest.mark.slow
def test_preemptions_and_equal_bit_for_bit(flags, undisturbed, tmp_path):
    events = preemptions.moments(6, seed=1)
    assert {kind for kind, _ in events} == {"steps", "seconds", "warned"}
    pod, code, errors = preemptions.preempt(tmp_path, flags, events)
    assert code == 0, errors
    assert len(pod.preempted()) == len(events) and len(pod.calls("create")) == len(events) + 1 and not pod.exists()
    assert runs.weights(pod.bucket) == runs.weights(undisturbed)
    assert runs.losses(pod.bucket) == runs.losses(undisturbed)

    commit = subprocess.run([*GIT, "rev-parse", "HEAD"], cwd=pod.repository, capture_output=True, text=True).stdout
    starts = runs.records(pod.bucket / "starts.jsonl")
    assert {start["versions"]["bertjax"] for start in starts} == {commit.strip()}
    assert list((pod.bucket / "worker_logs").glob("*.log"))
