"""Failures that repeat: the same step from the same checkpoint, and nothing else."""

import jax
import jax.numpy as jnp
import pytest
from etils import epath

from bertjax.runtime.command_line import code_for
from bertjax.runtime.errors import FailedAgain, RunFailed, Unavailable, UserError
from bertjax.training.run.failures import Failures, NotFinite, explained
from bertjax.training.run.workdir import read_jsonl
from tests import runs


def exit_code(folder, checkpoint: int, step: int, error: Exception) -> int:
    """The exit code of a start that fails."""
    return code_for(Failures(epath.Path(folder / "failures.jsonl"), checkpoint).judge(step, error))


def test_the_same_step_from_the_same_checkpoint_fails_again(tmp_path):
    failure = NotFinite("loss is not finite")
    assert exit_code(tmp_path, 10, 17, failure) == 1
    assert exit_code(tmp_path, 10, 17, failure) == 3
    assert exit_code(tmp_path, 10, 18, failure) == 1, "another step"
    assert exit_code(tmp_path, 20, 18, failure) == 1, "another checkpoint"
    assert exit_code(tmp_path, 20, 18, failure) == 3
    records = read_jsonl(epath.Path(tmp_path / "failures.jsonl"))
    assert [(record["checkpoint"], record["step"]) for record in records] == [
        (10, 17),
        (10, 17),
        (10, 18),
        (20, 18),
        (20, 18),
    ]
    assert {record["reason"] for record in records} == {"loss is not finite"}


def test_the_message_names_both_and_the_way_out(tmp_path):
    Failures(epath.Path(tmp_path / "failures.jsonl"), 10).judge(17, ValueError("a defect"))
    again = Failures(epath.Path(tmp_path / "failures.jsonl"), 10).judge(17, ValueError("a defect"))
    assert str(again).startswith(
        "step 17 failed twice from checkpoint 10 (a defect); the same command would fail again"
    )


@pytest.mark.parametrize(
    "error, code",
    [
        (Unavailable("503"), 75),
        (UserError("bad input"), 2),
        (RunFailed("another process"), 1),
        (OSError("disk"), 1),
        # What a chip that fails raises; a launcher may find another one.
        (jax.errors.JaxRuntimeError("INTERNAL: Core halted unexpectedly"), 1),
        (jax.errors.JaxRuntimeError("UNAVAILABLE: TPU worker is gone"), 1),
    ],
)
def test_what_may_pass_never_counts(tmp_path, error, code):
    assert [exit_code(tmp_path, 10, 17, error) for _ in range(3)] == [code] * 3
    assert not list(tmp_path.iterdir())


def test_a_record_that_cannot_be_written_does_not_hide_the_failure(tmp_path, caplog):
    failures = Failures(epath.Path(tmp_path / "failures.jsonl"), 10)
    (tmp_path / "failures.jsonl").mkdir()
    error = NotFinite("loss is not finite")
    assert failures.judge(17, error) is error
    assert "cannot be written" in caplog.text


@pytest.mark.slow
def test_a_run_that_fails_twice_ends_in_code_3(flags, tmp_path, capsys):
    """The first update is so large that no later loss is finite."""
    too_fast = ["--config.optimizer.learning_rate=1e30", "--config.optimizer.warmup_steps=0", f"--workdir={tmp_path}"]
    assert runs.call(*flags, *too_fast) == 1
    assert runs.call(*flags, *too_fast) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: step 1 failed twice from checkpoint 0 (loss, ")
    assert runs.call(*flags, *too_fast, "--config.runtime.max_skipped=1") == 1, "step 3"


def test_a_step_that_does_not_fit_into_memory_names_the_settings(tmp_path):
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        jax.block_until_ready(jax.jit(lambda: jnp.zeros(1 << 50))())
    explained_error = explained(error.value, 7)
    assert isinstance(explained_error, RunFailed) and str(explained_error).startswith(
        "step 7 does not fit into memory ("
    )
    assert "set runtime.micro_tokens" in str(explained_error) and "\n" not in str(explained_error)
    other = ValueError("a bug")
    assert explained(other, 7) is other

    for kind in (RunFailed, FailedAgain):
        judged = Failures(epath.Path(tmp_path / "failures.jsonl"), 5).judge(7, error.value)
        assert type(judged) is kind and str(judged).startswith(str(explained_error))
