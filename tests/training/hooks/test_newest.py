"""Results of a run that is not finished: the summary and the curves of the newest evaluation."""

import json

import pytest
from matplotlib import image

from bertjax.runtime.storage import StorageError
from bertjax.training.hooks import save
from bertjax.training.hooks.save import NewestResults
from bertjax.training.run.metrics import MetricsLog, Totals
from bertjax.training.run.workdir import Workdir
from bertjax.training.run.writer import LogWriter
from tests.training.run.test_metrics import STEP
from tests.waiting import Clock


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
