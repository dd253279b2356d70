"""A checkpoint that cannot be read is not a damaged one: nothing is renamed, and the error has the right exit code."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
import tenacity
from etils import epath

from bertjax.runtime import command_line, storage
from bertjax.runtime.errors import RunFailed, Unavailable, UserError
from bertjax.training.parallel import processes
from bertjax.training.run.checkpoint import Checkpoints
from bertjax.training.run.record import read_checkpoint
from tests.training.run.test_checkpoint import assert_is, newest, state, write

NO_MEMORY = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes.")


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unreadable") / "c"
    write(folder, 10, 20)
    return folder


@pytest.fixture
def two(written, tmp_path, monkeypatch) -> Path:
    """A folder with the checkpoints 10 and 20, read without waiting between attempts."""
    shutil.copytree(written, tmp_path / "c")
    monkeypatch.setattr(storage, "_WAIT", tenacity.wait_none())
    monkeypatch.setattr("bertjax.training.run.checkpoint._PAUSE", 0.0)
    return tmp_path / "c"


@pytest.fixture
def fail(monkeypatch) -> Callable[[Exception, int], list[int]]:
    """Make the next reads of arrays by Orbax raise an error; the list that is returned counts them."""
    restore = ocp.CheckpointManager.restore

    def install(error: Exception, times: int) -> list[int]:
        failed = []

        def failing(self, step, args):
            if "state" in args and len(failed) < times:
                failed.append(step)
                raise error
            return restore(self, step, args=args)

        monkeypatch.setattr(ocp.CheckpointManager, "restore", failing)
        return failed

    return install


def tensorstore_error(code: str) -> Exception:
    """As Orbax raises what TensorStore raised."""
    error = Exception("Encountered error while reading array index: (slice(0, 100, 1),).")
    error.__cause__ = ValueError(f"{code}: Error reading params.kernel/0.0")
    return error


TRANSIENT = [
    TimeoutError("timed out"),
    OSError(errno.ESTALE, "Stale file handle"),
    OSError(errno.EIO, "Input/output error"),
    tensorstore_error("UNAVAILABLE"),
    tensorstore_error("DEADLINE_EXCEEDED"),
    tensorstore_error("UNKNOWN"),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=str)
def test_an_error_that_passes_is_not_noticed(two, fail, error):
    failed = fail(error, 3)
    assert_is(newest(two), 20)
    assert failed == [20, 20, 20]
    assert sorted(path.name for path in two.parent.iterdir()) == ["c"]


@pytest.mark.parametrize("error", TRANSIENT, ids=str)
def test_an_error_that_stays_ends_with_75(two, fail, error):
    failed = fail(error, 1000)
    with pytest.raises(Unavailable, match="run the same command again later") as caught:
        newest(two)
    assert command_line.code_for(caught.value) == command_line.STOPPED and str(two / "20") in str(caught.value)
    assert_nothing_is_lost(two, failed, caught.value)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), r"\(Permission denied\); it is kept; give this process"),
        (tensorstore_error("PERMISSION_DENIED"), r"\(PERMISSION_DENIED: .*\); it is kept; give this process the right"),
        (NO_MEMORY, r"does not fit into memory \(RESOURCE_EXHAUSTED: Out of memory.*\); it is kept; use more devices"),
        (MemoryError(), r"does not fit into memory \(MemoryError\)"),
        (RuntimeError("no thread\nmore"), r"cannot be read \(RuntimeError: no thread\); it is kept; starts.jsonl has"),
    ],
    ids=str,
)
def test_other_errors_end_in_their_own_words(two, fail, error, message):
    failed = fail(error, 1000)
    with pytest.raises(RunFailed, match=f"^{two}/20 .*{message}") as caught:
        newest(two)
    assert command_line.code_for(caught.value) == command_line.FAILED
    assert_nothing_is_lost(two, failed, caught.value)


def assert_nothing_is_lost(folder: Path, failed: list[int], error: Exception) -> None:
    """No older checkpoint was tried, none was renamed, and the message is one line that deletes nothing."""
    assert set(failed) == {20}
    assert sorted(path.name for path in folder.parent.iterdir()) == ["c"]
    assert Checkpoints(epath.Path(folder)).steps() == [10, 20]
    assert "delete" not in str(error) and "\n" not in str(error)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda params: params | {"new_bias": jnp.zeros(3)}, r"params/new_bias: None -> 'float32\[3\]'"),
        (lambda params: {"kernel": params["kernel"]}, r"params/bias: 'float32\[3\]' -> None"),
        (lambda params: params | {"bias": jnp.zeros(5)}, r"params/bias: 'float32\[3\]' -> 'float32\[5\]'"),
        (lambda params: params | {"bias": jnp.zeros(3, int)}, r"params/bias: 'float32\[3\]' -> 'int32\[3\]'"),
    ],
)
def test_a_state_of_other_code_is_described(two, change, difference):
    ours = state(0) | {"params": change(state(0)["params"])}
    with pytest.raises(
        UserError, match=rf"^{two}/20 was saved by other code \({difference}\); use the version of bertjax that "
    ):
        Checkpoints(epath.Path(two)).restore_newest(lambda step: ours)
    assert sorted(path.name for path in two.parent.iterdir()) == ["c"]


def test_bits_that_a_second_read_does_not_find_flipped_are_none(two, monkeypatch):
    restore, reads = ocp.CheckpointManager.restore, []

    def flipping(self, step, args):
        restored = restore(self, step, args=args)
        if "state" in args:
            reads.append(step)
            if len(reads) == 1:
                restored["state"]["params"]["bias"] += 1.0
        return restored

    monkeypatch.setattr(ocp.CheckpointManager, "restore", flipping)
    assert_is(newest(two), 20)
    assert reads == [20, 20]


def other_process(monkeypatch, answers: dict) -> list[str]:
    """Let a second process answer `gather`, by purpose; otherwise it agrees. The list that is returned has purposes."""
    purposes = []

    def gather(value, purpose):
        purposes.append(purpose)
        return [value, answers.get(purpose, value)]

    monkeypatch.setattr(processes, "gather", gather)
    monkeypatch.setattr(processes, "_all_fail", False)
    return purposes


def test_all_processes_leave_a_checkpoint_that_one_finds_damaged(two, monkeypatch, caplog):
    purposes = other_process(monkeypatch, {"restore-20": ["Damaged", "a file is missing"]})
    assert_is(newest(two), 10)
    assert "checkpoint 20 is damaged (process 1: a file is missing)" in caplog.text
    assert purposes.count("restore-20") == 2  # after a second read of both
    assert purposes[-1] == "verify-10"
    assert len(list(two.parent.glob("c.damaged-20-*"))) == 1


def test_an_error_of_one_process_is_everyones_and_outweighs_damage(two, fail, monkeypatch):
    other_process(monkeypatch, {"restore-20": ["Unavailable", "gs://bucket: 503"]})
    fail(tensorstore_error("DATA_LOSS"), 1000)
    with pytest.raises(Unavailable, match="^process 1: gs://bucket: 503$"):
        newest(two)
    assert sorted(path.name for path in two.parent.iterdir()) == ["c"]


def test_a_process_that_alone_reads_other_values_ends_the_run(two, monkeypatch):
    """Neither of them continues from another step than the other, and the checkpoint stays."""
    purposes = other_process(monkeypatch, {"verify-20": ["params/kernel"]})
    with pytest.raises(RunFailed, match="^process 1 reads other values of params/kernel from checkpoint 20 in "):
        newest(two)
    assert purposes.count("verify-20") == 2 and "restore-10" not in purposes
    assert sorted(path.name for path in two.parent.iterdir()) == ["c"]


@pytest.fixture(scope="module")
def run(undisturbed, tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("live") / "run"
    shutil.copytree(undisturbed, workdir)
    return workdir


def test_the_newest_checkpoint_of_a_live_run_is_read_when_the_one_before_is_deleted(run, monkeypatch):
    """The run saves 100 and deletes 90 between the list of checkpoints and the read of the newest one."""
    monkeypatch.setattr("bertjax.training.run.checkpoint._PAUSE", 0.0)
    hidden, restore = run / "checkpoints" / "100", Checkpoints.restore
    hidden.rename(run / "hidden")

    def deleting(self, step):
        if (run / "hidden").exists():
            (run / "hidden").rename(hidden)
            shutil.rmtree(run / "checkpoints" / str(step))
        return restore(self, step)

    monkeypatch.setattr(Checkpoints, "restore", deleting)
    assert read_checkpoint(run, "").numbers["steps"] == 100


def test_a_deleted_checkpoint_of_a_live_run_that_was_asked_for_is_no_damage(run, monkeypatch):
    monkeypatch.setattr("bertjax.training.run.checkpoint._PAUSE", 0.0)
    restore = Checkpoints.restore

    def deleting(self, step):
        shutil.rmtree(run / "checkpoints" / str(step))
        return restore(self, step)

    monkeypatch.setattr(Checkpoints, "restore", deleting)
    step, *others = sorted(int(path.name) for path in (run / "checkpoints").iterdir())
    with pytest.raises(UserError, match=f"has no checkpoint {step}; it has {', '.join(map(str, others))}$"):
        read_checkpoint(run, str(step))


@pytest.mark.parametrize("error", [tensorstore_error("DATA_LOSS"), FileNotFoundError("20/state"), KeyError("key")])
def test_damage_that_a_second_read_does_not_find_is_none(two, fail, error, caplog):
    failed = fail(error, 1)
    assert_is(newest(two), 20)
    assert failed == [20] and "damaged" not in caplog.text
    assert sorted(path.name for path in two.parent.iterdir()) == ["c"]
