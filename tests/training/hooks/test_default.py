"""Hooks of every run: spikes, newest results, profiles and progress."""

import contextlib
import io
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from matplotlib import image
from tqdm import tqdm

from bertjax.runtime.errors import UserError
from bertjax.runtime.storage import StorageError
from bertjax.training.hooks import save
from bertjax.training.hooks.profiling import Trace, parse_steps
from bertjax.training.hooks.progress import restart_clock
from bertjax.training.hooks.save import NewestResults
from bertjax.training.hooks.spikes import SpikeDetector
from bertjax.training.run.metrics import MetricsLog, Totals
from bertjax.training.run.workdir import Workdir
from bertjax.training.run.writer import LogWriter
from tests.training.run.test_metrics import STEP
from tests.waiting import Clock


def test_a_spike_is_found_and_hardly_moves_the_mean():
    draw, detector = np.random.default_rng(0), SpikeDetector(deviations=6.0, horizon=50)
    losses = 5.0 + 0.1 * draw.normal(size=400)
    losses[[200, 201, 300]] = 7.0, 9.0, np.nan
    spikes_at = {step: detector.find(step, {"loss": loss}) for step, loss in enumerate(losses)}
    assert [step for step, spikes in spikes_at.items() if spikes] == [200, 201, 300]
    loss, above = spikes_at[200]["loss"]
    assert loss == 7.0 and 12.0 < above < 30.0


def test_losses_that_are_not_finite_do_not_enter_the_mean():
    draw, detector = np.random.default_rng(2), SpikeDetector(horizon=50)
    losses = 5.0 + 0.1 * draw.normal(size=200)
    losses[[0, 10]] = np.inf, np.nan
    assert not any(detector.find(step, {"loss": loss}) for step, loss in enumerate(losses))


def test_a_lasting_change_of_the_loss_soon_counts_as_normal():
    draw, detector = np.random.default_rng(3), SpikeDetector()
    losses = 2.0 + 0.01 * draw.normal(size=1000)
    losses[500:] += 1.0
    spikes = [step for step, loss in enumerate(losses) if detector.find(step, {"loss": loss})]
    assert spikes and spikes[0] == 500 and spikes[-1] < 530


def test_a_restart_knows_what_the_detector_knew():
    draw = np.random.default_rng(5)
    losses = 2.0 + 0.05 * draw.normal(size=600)
    losses[[350, 450]] = 4.0
    losses[500:] += 3.0
    whole, parts = SpikeDetector(), SpikeDetector()
    for step, loss in enumerate(losses):
        if step % 70 == 0:  # more often than the horizon, within which a new detector finds nothing
            parts = SpikeDetector(state=json.loads(json.dumps(parts.state)))
        assert parts.find(step, {"loss": loss}) == whole.find(step, {"loss": loss})
        assert parts.state == whole.state
    assert whole.high_since is not None


@pytest.mark.parametrize("level, is_high", [(7.0, True), (2.0, False)])
def test_a_loss_that_is_high_when_a_stage_ends_is_high_until_the_next_one_is_low(level, is_high):
    """The checkpoints from before the rise are kept as long."""
    draw, detector = np.random.default_rng(7), SpikeDetector()
    losses = 2.0 + 0.05 * draw.normal(size=900)
    losses[200:450] += 5.0
    losses[450:] += level - 2.0
    high = []
    for step, loss in enumerate(losses):
        detector = SpikeDetector(state=json.loads(json.dumps(detector.state)))
        detector.find(step, {"loss": loss}, stage=step // 400)
        high.append(detector.high_since)
    since = high[399]
    assert 200 <= since < 250 and set(high[400:500]) == {since}, "it is not known yet in the new stage"
    assert high[-1] == (since if is_high else None)


@pytest.fixture
def workdir(tmp_path) -> Workdir:
    return Workdir.at(tmp_path)


def read(workdir: Workdir) -> dict:
    return json.loads(workdir.summary.read_text())


def test_the_writer_writes_the_summary_and_later_draws_the_curves(workdir, monkeypatch):
    clock = Clock(100.0)
    monkeypatch.setattr(save, "time", clock)
    results = NewestResults(workdir)
    with LogWriter() as writer:
        log = MetricsLog(workdir, Totals(), 0, writer)
        log.write(10, STEP, {"eval/heldout/mlm_loss": 6.0})
        results.add({"steps": 10, "eval": {"mlm_loss": float("nan")}})
        log.close()
    results.write(everything=False)
    assert read(workdir) == {"finished": False, "steps": 10, "eval": {"mlm_loss": None}}
    results.add({"steps": 20})
    clock.now = 129.0
    results.write(everything=True)
    assert read(workdir) == {"finished": False, "steps": 20}
    assert not workdir.curves.exists(), "saves do not wait for a drawing"
    clock.now = 131.0
    results.write(everything=False)
    assert image.imread(workdir.curves).std() > 0


def test_figures_wait_for_a_store_that_is_down(workdir, monkeypatch):
    def fail(path, text):
        raise StorageError(5, "down", path)

    results = NewestResults(workdir)
    results.add({"steps": 10})
    with monkeypatch.context() as patched:
        patched.setattr(save.storage, "write_text", fail)
        with pytest.raises(StorageError):
            results.write(everything=False)
    results.write(everything=False)
    assert read(workdir)["steps"] == 10


def test_final_results_are_not_overwritten(workdir):
    results = NewestResults(workdir)
    results.add({"steps": 10})
    results.end()
    results.write(everything=True)
    assert not workdir.summary.exists()


@pytest.mark.slow
def test_a_trace_of_some_steps_is_written(tmp_path):
    trace, run = Trace(range(2, 4), epath.Path(tmp_path)), SimpleNamespace(state={"step": jnp.zeros(())})
    for step in range(6):
        trace.on_dispatch(run, step, step + 1)
        run.state = {"step": run.state["step"] + 1}
    trace.on_close(run, None)
    assert list(tmp_path.rglob("*.xplane.pb"))


@pytest.mark.slow
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


def test_the_time_left_does_not_count_the_compilation():
    """Of a bar by a clock of the test: 100 s for the first step, then one step a second."""
    now = 0.0
    bar = tqdm(total=100, initial=10, smoothing=0.1, file=io.StringIO(), mininterval=0.5)
    bar._time = lambda: now
    bar.start_t = bar.last_print_t = now
    now = 100.0
    restart_clock(bar, 11)
    for step in range(12, 42):
        now += 1.0
        bar.update(step - bar.n)
    assert bar.format_dict["elapsed"] == 30.0
    assert bar.format_dict["rate"] == pytest.approx(1.0) and "00:30<00:59, " in str(bar)
    bar.close()
