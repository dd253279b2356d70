"""Hooks of every run: spikes, newest results, profiles and progress."""

import contextlib
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from bertjax.runtime.errors import UserError
from bertjax.runtime.storage import StorageError
from bertjax.training.hooks import save
from bertjax.training.hooks.log import Trace, parse_steps
from bertjax.training.hooks.save import NewestResults
from bertjax.training.hooks.spikes import SpikeDetector
from bertjax.training.run.workdir import Workdir


def test_a_spike_is_found_and_hardly_moves_the_mean():
    draw, detector = np.random.default_rng(0), SpikeDetector(deviations=6.0, horizon=50)
    losses = 5.0 + 0.1 * draw.normal(size=400)
    losses[[200, 201, 300]] = 7.0, 9.0, np.nan
    spikes_at = {step: detector.find(step, {"loss": loss}) for step, loss in enumerate(losses)}
    assert [step for step, spikes in spikes_at.items() if spikes] == [200, 201, 300]
    loss, above = spikes_at[200]["loss"]
    assert loss == 7.0 and 12.0 < above < 30.0


def test_a_loss_that_its_task_has_left_high_does_not_hide_the_next():
    detector = SpikeDetector(horizon=50)

    def train(task: str, losses, stage: int) -> list[str]:
        for loss in losses:
            detector.find(1, {f"{task}/loss": loss}, stage, (f"{task}/",))
        return list(detector.high)

    waves = np.resize([0.0, 0.1], 400)
    assert train("a", 2.0 + waves, 0) == []
    assert train("a", 5.0 + waves, 0) == ["a/loss"]
    assert train("b", 2.0 + waves, 1) == []
    assert train("b", 5.0 + waves, 1) == ["b/loss"]
    assert train("b", 5.0 + waves[:9], 2) == ["b/loss"], "a new stage does not cure it"


@pytest.fixture
def workdir(tmp_path) -> Workdir:
    return Workdir.at(tmp_path)


def read(workdir: Workdir) -> dict:
    return json.loads(workdir.summary.read_text())


def test_figures_wait_for_a_store_that_is_down(workdir, monkeypatch):
    def fail(path, text):
        raise StorageError(5, "down", path)

    results = NewestResults(workdir, list)
    results.add({"steps": 10})
    with monkeypatch.context() as patched:
        patched.setattr(save.storage, "write_text", fail)
        with pytest.raises(StorageError):
            results.write()
    results.write()
    assert read(workdir)["steps"] == 10


@pytest.mark.slow
def test_a_trace_of_some_steps_is_written(tmp_path):
    trace, run = Trace(range(2, 4), epath.Path(tmp_path)), SimpleNamespace(state={"step": jnp.zeros(())})
    for step in range(6):
        trace.on_dispatch(run, step, step + 1)
        run.state = {"step": run.state["step"] + 1}
    trace.on_close(run, None)
    assert list(tmp_path.rglob("*.xplane.pb"))


@pytest.mark.slow
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


def test_steps_to_trace():
    assert parse_steps("100:105") == range(100, 105)
    for text in ("", "5", "5:5", "5:3", "a:b", "-1:3"):
        with pytest.raises(UserError, match="must be FIRST:LAST, as in --profile=100:105"):
            parse_steps(text)
