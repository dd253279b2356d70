"""Traces of selected steps."""

import contextlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from etils import epath

from bertjax.runtime.errors import UserError
from bertjax.training.hooks.profiling import Trace, parse_steps


@pytest.mark.slow
def test_a_trace_of_some_steps_is_written(tmp_path):
    trace, run = Trace(range(2, 4), epath.Path(tmp_path)), SimpleNamespace(state={"step": jnp.zeros(())})
    for step in range(6):
        trace.on_dispatch(run, step, step + 1)
        run.state = {"step": run.state["step"] + 1}
    trace.on_close(run, None)
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_steps_within_a_chunk_are_traced_with_it(tmp_path):
    trace, run = Trace(range(20, 25), epath.Path(tmp_path)), SimpleNamespace(state={"step": jnp.zeros(())})
    for first in (0, 16, 32):
        trace.on_dispatch(run, first, first + 16)
        assert bool(list(tmp_path.rglob("*.xplane.pb"))) == (first == 32)


def test_a_trace_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "profile").write_text("not a folder")
    trace, run = Trace(range(0, 2), epath.Path(tmp_path / "profile")), SimpleNamespace(state={"step": jnp.zeros(())})
    for step in range(4):
        trace.on_dispatch(run, step, step + 1)
    trace.on_close(run, None)
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f"no trace is written to {tmp_path / 'profile'}: ")
    (tmp_path / "profile").unlink()
    with contextlib.suppress(RuntimeError):  # up to JAX 0.10, a session that could not write stays open
        jax.profiler.stop_trace()


def test_a_trace_of_steps_that_are_not_trained_is_a_warning(tmp_path, caplog):
    trace = Trace(range(20, 25), epath.Path(tmp_path))
    trace.on_dispatch(SimpleNamespace(state={}), 0, 16)
    trace.on_close(SimpleNamespace(state={}), None)
    assert "no trace was written: none of the steps 20:25 was trained" in caplog.text


def test_steps_to_trace():
    assert parse_steps("100:105") == range(100, 105)
    for text in ("", "5", "5:5", "5:3", "a:b", "-1:3"):
        with pytest.raises(UserError, match="must be FIRST:LAST, as in --profile=100:105"):
            parse_steps(text)
