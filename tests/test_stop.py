"""How a run is asked to stop: signals, the moment of an evaluation, and seeds that follow."""

import contextlib
import errno
import functools
import json
import os
import pty
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from unittest import mock

import pytest

from bertjax.cli import train
from bertjax.config.config import Config
from bertjax.runtime import command_line
from bertjax.runtime.command_line import STOPPED
from bertjax.training import evaluation
from bertjax.training.evaluation import Evaluator
from bertjax.training.results import rescore
from bertjax.training.run.checkpoint import Checkpoints, NotSaved
from tests import runs
from tests.faults import injection
from tests.waiting import Clock, wait_until


@pytest.fixture
def stop():
    """The handler of a training, until the end of the test."""
    handlers = {signum: signal.getsignal(signum) for signum in command_line.STOP_SIGNALS}
    yield command_line.stop_signal()
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


@pytest.fixture(autouse=True)
def hangup():
    """The tests may run under nohup, which ignores this signal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(command_line, "time", clock)
    return clock


def send(*signums: int) -> None:
    for signum in signums:
        signal.raise_signal(signum)  # unlike os.kill, to this thread, which runs the handler before it returns


def test_one_sigterm_and_its_repetitions_are_one_request(stop, clock):
    assert not stop()
    send(signal.SIGTERM)
    assert stop()
    clock.now += 5.0
    send(signal.SIGTERM, signal.SIGTERM, signal.SIGINT)
    assert stop()


def test_nohup_is_heeded():
    before = [signal.getsignal(signum) for signum in command_line.STOP_SIGNALS]
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        command_line.stop_signal()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        for signum, handler in zip(command_line.STOP_SIGNALS, before):
            signal.signal(signum, handler)


def test_a_later_sigterm_leaves_without_saving(stop, clock):
    send(signal.SIGTERM)
    clock.now += 5.1
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGTERM)


def test_a_second_interrupt_leaves_without_saving(stop):
    send(signal.SIGINT)
    assert stop()
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)


# {fault: signal that comes with it}: Ctrl-C also ends `tee`, a terminal that closes sends SIGHUP, and Slurm SIGTERM.
FAULTS = {errno.EPIPE: signal.SIGINT, errno.EIO: signal.SIGHUP, errno.ENOSPC: signal.SIGTERM}
# {moment of the fault: phase and number of its call}
MOMENTS = {"step": ("step", 3), "evaluation": ("evaluation", 1), "stop": ("step", 7)}


@contextlib.contextmanager
def breakable(name: str, fault: int, monkeypatch) -> Iterator[Callable[[], None]]:
    """Replace a stream by a pipe, a terminal or a file, and yield a function after which writing to it fails."""
    number = {"stdout": 1, "stderr": 2}[name]
    own = os.dup(number)
    if fault == errno.ENOSPC:
        written, full = os.open(os.devnull, os.O_WRONLY), os.open("/dev/full", os.O_WRONLY)
    else:
        other, written = os.pipe() if fault == errno.EPIPE else pty.openpty()
    os.dup2(written, number)
    monkeypatch.setattr(sys, name, open(number, "w", buffering=1, closefd=False))
    yield lambda: os.dup2(full, number) if fault == errno.ENOSPC else os.close(other)
    monkeypatch.undo()
    os.dup2(own, number)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("fault", FAULTS, ids=errno.errorcode.get)
def test_a_stream_that_fails_ends_no_run_and_keeps_no_stop_from_saving(
    fault, name, moment, flags, tmp_path, monkeypatch
):
    brief = ["--config.stages.0.steps=12", "--config.eval.every=6", "--config.runtime.save_every=1000"]
    with breakable(name, fault, monkeypatch) as break_stream:
        with injection.at("step", lambda: signal.raise_signal(FAULTS[fault])):  # the 7th
            with injection.at(MOMENTS[moment][0], break_stream, MOMENTS[moment][1]):
                code = runs.call(*flags, *brief, f"--workdir={tmp_path}")
    heartbeat = json.loads((tmp_path / "heartbeat.json").read_text())
    assert (code, heartbeat["state"], heartbeat["step"]) == (STOPPED, "stopped", 7)
    assert train.Workdir.at(tmp_path).saved_steps() == [7]


@pytest.mark.slow
def test_a_stop_after_the_last_step_of_a_seed_starts_no_other(monkeypatch, tmp_path):
    """The notice may come during the last evaluation, when the loop asks no more."""
    started = []

    def run(config, workdir, **options):
        started.append(config.seed)
        return train.Summary(100, True, {"eval": {}, "baseline": {}}, tmp_path)

    monkeypatch.setattr(train, "run", run)
    trials = [train.Trial(f"seed={seed}", Config(seed=seed)) for seed in range(3)]
    results = train.train_each(train.Workdir.at(tmp_path).root, trials, should_stop=lambda: len(started) == 2)
    assert started == [0, 1] and results.is_stopped


def stop_in_evaluation(flags, workdir, number: int) -> list[int]:
    """Ask a run to stop as soon as its evaluation with this number has begun; return the batches of each evaluation."""
    asked, batches, evaluate, put = [], [], Evaluator.__call__, evaluation.put_global

    def begin(evaluator, params):
        batches.append(0)
        asked.extend([True] * (len(batches) == number))
        return evaluate(evaluator, params)

    def count(*arguments):
        batches[-1] += 1
        return put(*arguments)

    with mock.patch.object(Evaluator, "__call__", begin), mock.patch.object(evaluation, "put_global", count):
        runs.train_until(flags, workdir, lambda: bool(asked))
    return batches


@pytest.mark.slow
@pytest.mark.parametrize("save_every", [10, 1000])
def test_a_stop_in_an_evaluation_ends_it_and_the_next_start_repeats_it(flags, undisturbed, tmp_path, save_every):
    """In the middle of the run, whether its step is saved or not; in the evaluation that it owes; and after the end."""
    saving = [*flags, f"--config.runtime.save_every={save_every}"]
    seen, stopped_at = [], []
    for number in (1, 1, 2):
        seen.append(stop_in_evaluation(saving, tmp_path, number))
        heartbeat = json.loads((tmp_path / "heartbeat.json").read_text())
        stopped_at.append((heartbeat["state"], heartbeat["step"]))
        assert Checkpoints(train.Workdir.at(tmp_path).checkpoints).steps()[-1] == heartbeat["step"]
        samples = [record["step"] for record in runs.records(tmp_path / "samples.jsonl")]
        assert samples == [50] * (heartbeat["step"] == 100)
    assert stopped_at == [("stopped", 50), ("stopped", 50), ("stopped", 100)]
    [first, second, (whole, third)] = seen
    assert first == second == [1] and third == 1 < whole
    assert stop_in_evaluation(saving, tmp_path, 0) == [whole]
    for file in ("samples.jsonl", "evaluations.jsonl"):
        assert runs.records(tmp_path / file) == runs.records(undisturbed / file)
    assert runs.losses(tmp_path) == runs.losses(undisturbed) and runs.weights(tmp_path) == runs.weights(undisturbed)


# The encoder grows after step 4, which is evaluated. Its score is the best: the learning rate becomes much too high.
GROWING = [
    "--config.stages=[{'steps': 4, 'seq_len': 32, 'batch': 4, 'layers': 1}, {'steps': 6, 'seq_len': 32, 'batch': 4}]",
    *("--config.optimizer.learning_rate=0.5", "--config.optimizer.warmup_steps=9", "--config.eval.every=4"),
    *("--config.runtime.save_every=1", "--config.runtime.keep=2", "--config.runtime.keep_best=1"),
]


def results(workdir) -> tuple:
    evaluations = runs.records(workdir / "evaluations.jsonl")
    metrics = [
        {name: value for name, value in record.items() if "seconds" not in name}
        for record in runs.records(workdir / "metrics.jsonl")
    ]
    return evaluations, metrics, Checkpoints(train.Workdir.at(workdir).checkpoints).steps()


@pytest.mark.slow
def test_a_run_that_ends_at_an_evaluation_loses_neither_the_step_nor_its_score(flags, tmp_path, monkeypatch):
    growing, whole = [*flags, *GROWING], tmp_path / "whole"
    runs.train_here(growing, whole, lambda edge: None)
    evaluations, _, kept = expected = results(whole)
    scores = {record["step"]: record["score"] for record in evaluations}
    assert scores.keys() == {4, 8, 10} and min(scores, key=scores.get) == 4 and kept == [4, 9, 10]
    own = rescore.run(f"{whole}@4")["eval"]
    assert own["mlm_loss"] == pytest.approx(scores[4], rel=1e-6), "the model that is saved is the one that is scored"

    asked, killed = tmp_path / "asked", tmp_path / "killed"
    runs.train_here(growing, asked, lambda edge: True if edge == 4 else None)
    with monkeypatch.context() as ending, pytest.raises(KeyboardInterrupt):
        ending.setattr(Evaluator, "__call__", functools.partial(_killed_once_saved, killed))
        runs.train_here(growing, killed, lambda edge: None)
    for parted in (asked, killed):
        assert results(parted)[0] == []
        runs.train_here(growing, parted, lambda edge: None)
        assert results(parted) == expected and runs.weights(parted) == runs.weights(whole)


def _killed_once_saved(workdir, *_):
    """The machine is taken away in the evaluation, when the save that has begun before it is complete."""
    wait_until(lambda: 4 in train.Workdir.at(workdir).saved_steps())
    raise KeyboardInterrupt


@pytest.mark.slow
def test_the_export_is_written_although_the_last_save_fails(flags, tmp_path, monkeypatch, capsys):
    def save(self, step, *_):
        if step:
            raise NotSaved("a checkpoint could not be written")

    monkeypatch.setattr(Checkpoints, "save", save)
    brief = ["--config.stages.0.steps=6", "--config.eval.every=6", f"--workdir={tmp_path}"]
    assert runs.call(*flags, *brief) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "error: a checkpoint could not be written"
    assert (tmp_path / "export" / "model.safetensors").exists() and (tmp_path / "summary.json").exists()


@pytest.mark.slow
def test_rows_are_skipped_only_from_a_checkpoint_before_them(flags, undisturbed, tmp_path, capsys):
    shutil.copytree(undisturbed, tmp_path / "run")
    skipping = [*flags, f"--workdir={tmp_path / 'run'}", "--config.runtime.skip_rows=[[40,50]]"]
    assert runs.call(*skipping) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: checkpoint 100 was trained with runtime.skip_rows=[], and the settings differ")
    for step in (80, 90, 100):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / str(step))
    assert runs.call(*skipping) == 0
    before, after = runs.losses(undisturbed), runs.losses(tmp_path / "run")
    assert after[:40] == before[:40] and not set(after[40:]) & set(before[40:])
    assert json.loads((tmp_path / "run" / "config.json").read_text())["identity"]["skip_rows"] == [[40, 50]]
