"""Two real processes exchange values, errors and fingerprints."""

import json

import pytest

from bertjax.runtime.command_line import FAILED, STOPPED
from bertjax.runtime.errors import UserError
from bertjax.training.parallel import processes
from tests import runs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen() -> list[dict]:
    """What each of two processes saw, see two_processes.py."""
    ended = runs.finish_many(runs.start_many(2, module="tests.training.parallel.two_processes"))
    assert [done.returncode for done in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    return [json.loads(done.stdout.splitlines()[-1]) for done in ended]


def test_values_come_in_order_and_are_not_kept_for_ever(seen):
    for process in seen:
        assert process["values"] == [0, 10] and process["after"] == [0, 1]
        assert process["stored"] <= 4  # of some twenty


@pytest.mark.parametrize(
    ("kind", "code"), [("UserError", 2), ("RunFailed", 1), ("Unavailable", 75), ("Busy", 75), ("Damaged", 2)]
)
def test_an_error_of_one_process_has_its_class_in_all(seen, kind, code):
    assert seen[0][kind] == [kind, code, "process 1: broken"]
    assert seen[1][kind] == [kind, code, "broken"]


def test_a_defect_of_one_process_ends_the_others(seen):
    assert seen[0]["defect"] == ["RunFailed", 1, "process 1: 'missing'"]
    assert seen[1]["defect"] == "'missing'"


def test_a_variable_that_is_no_number_is_named(monkeypatch):
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"):
        monkeypatch.setenv(name, "0" if name == "JAX_PROCESS_ID" else "two")
    with pytest.raises(UserError, match="^JAX_NUM_PROCESSES='two' must be a number$"):
        processes.start(10)


def test_different_purposes_are_an_error(seen):
    for process, own, other in ((seen[0], 20, 30), (seen[1], 30, 20)):
        kind, code, message = process["purposes"]
        assert (kind, code) == ("RunFailed", 1) and f" is at restore-{other} and this one at restore-{own};" in message


def test_steps_and_states_of_processes_are_compared(seen):
    for process in seen:
        assert process["equal"] == []
        kind, code, message = process["wrong"]
        assert (kind, code) == ("RunFailed", 1) and message.startswith("after step 30 the copies of the state differ ")
        assert "of process 0 in params/kernel; " in message and "of process 1 in params/kernel)" in message
        assert "replicas-20" in process["steps"][2] and "replicas-30" in process["steps"][2]


@pytest.mark.parametrize("code", [STOPPED, FAILED])
def test_a_process_that_fails_alone_does_not_wait_for_the_others(monkeypatch, code):
    """A lock that one process has lost ends it with 75 while its peers complete a save, which may take long."""
    monkeypatch.setenv("ENDS", str(code))
    first, second = runs.start_many(2, module="tests.training.parallel.one_leaves")
    try:
        ended = runs.finish(second)
        assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr
        assert first.poll() is None
    finally:
        first.kill()
