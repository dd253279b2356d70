"""Goodput, MFU, and traces of steps."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest
from etils import epath

from bertjax.runtime.chips import peak_flops
from bertjax.runtime.errors import UserError
from bertjax.training.config import MeshConfig
from bertjax.training.parallel.make_mesh import make_mesh
from bertjax.training.run import goodput
from bertjax.training.run.goodput import Elapsed, goodput_of, mfu
from bertjax.training.run.metrics import Totals
from bertjax.training.run.profiling import Trace, parse_steps
from tests.waiting import Clock


def test_seconds_of_all_starts(tmp_path, monkeypatch):
    path, clock = epath.Path(tmp_path / "elapsed.json"), Clock(1000.0)
    monkeypatch.setattr(goodput, "time", clock)
    first = Elapsed(path)
    clock.now = 1010.0
    first.write(everything=False)  # at most every ten seconds
    assert not path.exists()
    clock.now = 1011.0
    first.write(everything=False)
    assert json.loads(path.read_text()) == [11.0]
    clock.now = 1012.0
    first.write(everything=True)
    clock.now = 5.0  # another machine, whose clock counts from its own start
    second = Elapsed(path)
    clock.now = 8.0
    assert second.seconds == 15.0
    second.write(everything=True)
    assert json.loads(path.read_text()) == [12.0, 3.0]


def test_goodput_is_the_share_of_steps_that_were_kept():
    totals = Totals(
        seconds=100.0, data_wait_seconds=5.0, compile_seconds=20.0, checkpoint_seconds=10.0, evaluation_seconds=15.0
    )
    assert goodput_of(totals, wall_seconds=200.0) == {
        "step": 50.0,
        "data_wait": 5.0,
        "compile": 20.0,
        "checkpoint": 10.0,
        "evaluation": 15.0,
        "wall": 200.0,
        "goodput": 0.25,
    }
    assert dataclasses.asdict(totals)["seconds"] == 100.0


def test_mfu_where_the_peak_is_known(monkeypatch, caplog):
    assert peak_flops("TPU v5 lite") == 197e12 and peak_flops("TPU v3") == 61.5e12  # two devices a chip
    assert peak_flops("NVIDIA H200") == 989e12 and peak_flops("cpu") is None
    mesh = make_mesh(MeshConfig(data=1, fsdp=1), jax.devices()[:1])
    assert mfu(1e12, 2e12, 10.0, mesh) == {}
    monkeypatch.setattr("bertjax.training.run.goodput.peak_flops", lambda kind: 1e12)
    assert mfu(1e12, 2e12, 10.0, mesh) == {"mfu": 0.1, "executed_mfu": 0.2}
    assert not caplog.records
    for _ in range(2):  # an impossible share is neither hidden nor reported at every line
        assert mfu(1e12, 2e13, 10.0, mesh)["executed_mfu"] == 2.0
    assert [record.levelname for record in caplog.records] == ["ERROR"] and "mfu is above 1" in caplog.text


def test_steps_to_trace():
    assert parse_steps("100:105") == range(100, 105)
    for text in ("", "5", "5:5", "5:3", "a:b", "-1:3"):
        with pytest.raises(UserError, match="must be FIRST:LAST, as in --profile=100:105"):
            parse_steps(text)


@pytest.mark.slow
def test_a_trace_of_some_steps_is_written(tmp_path):
    trace, state = Trace(range(2, 4), epath.Path(tmp_path)), {"step": jnp.zeros(())}
    for step in range(6):
        trace.edge(step, step + 1, state)
        state = {"step": state["step"] + 1}
    trace.end(state)
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_steps_within_a_chunk_are_traced_with_it(tmp_path):
    trace, state = Trace(range(20, 25), epath.Path(tmp_path)), {"step": jnp.zeros(())}
    for first in (0, 16, 32):
        trace.edge(first, first + 16, state)
        assert bool(list(tmp_path.rglob("*.xplane.pb"))) == (first == 32)


def test_a_trace_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "profile").write_text("not a folder")
    trace, state = Trace(range(0, 2), epath.Path(tmp_path / "profile")), {"step": jnp.zeros(())}
    for step in range(4):
        trace.edge(step, step + 1, state)
    trace.end(state)
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f"no trace is written to {tmp_path / 'profile'}: ")
    (tmp_path / "profile").unlink()
    jax.profiler.stop_trace()  # a session that could not write stays open in JAX


def test_a_trace_of_steps_that_are_not_trained_is_a_warning(tmp_path, caplog):
    trace = Trace(range(20, 25), epath.Path(tmp_path))
    trace.edge(0, 16, {})
    trace.end({})
    assert "no trace was written: none of the steps 20:25 was trained" in caplog.text
