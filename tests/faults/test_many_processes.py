"""One run in several processes: it equals the run of one process, and survives the end of each of them."""

import json
import random
import signal

import pytest

from bertjax.cli import STOPPED
from tests import runs

pytestmark = pytest.mark.slow
STEPS = 100
SOON = "--config.runtime.heartbeat_timeout=10"


def assert_same_losses(one, other) -> None:
    """The first loss to 1e-5, none of 50 off by more than 1e-4."""
    pairs = list(zip(runs.losses(one), runs.losses(other)))[:50]
    assert len(pairs) == 50
    for (step, *losses), (other_step, *other_losses) in pairs:
        assert step == other_step
        assert losses == pytest.approx(other_losses, rel=1e-5 if step == 1 else 1e-4), step


def test_two_processes_train_like_one(undisturbed, undisturbed_pair):
    assert_same_losses(undisturbed_pair, undisturbed)
    one, two = (json.loads((root / "summary.json").read_text()) for root in (undisturbed, undisturbed_pair))
    assert two["eval"] == pytest.approx(one["eval"], rel=1e-4) and two["tokens"] == one["tokens"]
    assert [start["processes"] for start in runs.records(undisturbed_pair / "starts.jsonl")] == [2]
    samples = [[r["step"] for r in runs.records(root / "samples.jsonl")] for root in (undisturbed, undisturbed_pair)]
    assert samples[0] == samples[1]


def test_four_processes_train_like_one(flags, undisturbed, tmp_path):
    for done in runs.finish_many(runs.start_many(4, *flags, f"--workdir={tmp_path}")):
        assert done.returncode == 0, done.stderr
    assert_same_losses(tmp_path, undisturbed)


def test_sigterm_to_one_stops_both_and_the_run_resumes_bit_for_bit(flags, undisturbed_pair, tmp_path):
    processes = runs.start_many(2, *flags, f"--workdir={tmp_path}", fault="stops_only")
    runs.wait_for_step(tmp_path, 13, processes[0])
    processes[1].send_signal(signal.SIGTERM)
    first, second = runs.finish_many(processes)
    assert (first.returncode, second.returncode) == (STOPPED, STOPPED), first.stderr + second.stderr
    last_step = max(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
    assert 13 <= last_step < STEPS
    assert first.stdout.splitlines()[-1].startswith(f"stopped and saved at step {last_step}; to resume: ")
    for done in runs.finish_many(runs.start_many(2, *flags, f"--workdir={tmp_path}")):
        assert done.returncode == 0, done.stderr
    assert runs.weights(tmp_path) == runs.weights(undisturbed_pair)
    assert runs.losses(tmp_path) == runs.losses(undisturbed_pair)


def test_one_of_two_killed_twice_and_equal_bit_for_bit(flags, undisturbed_pair, tmp_path):
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    moments = sorted(draw.sample(range(1, STEPS - 30), 2))
    print(f"seed {seed}: killed after steps {moments}")
    for killed, moment in enumerate(moments):
        # A step that this start itself logs: before it, the two may not have met, and a peer that never came is
        # waited for as long as a slow one.
        logged = max((step for step, *_ in runs.losses(tmp_path)), default=0)
        processes = runs.start_many(2, *flags, SOON, f"--workdir={tmp_path}", fault="never_ends")
        runs.wait_for_step(tmp_path, max(moment, logged + 1), processes[0])
        processes[killed].kill()
        ended = runs.finish_many(processes)
        assert ended[killed].returncode == -signal.SIGKILL
        # It detects the loss itself (1), or JAX's coordination service ends it.
        assert ended[1 - killed].returncode in (1, -signal.SIGABRT), ended[1 - killed].stderr
    for done in runs.finish_many(runs.start_many(2, *flags, f"--workdir={tmp_path}")):
        assert done.returncode == 0, done.stderr
    assert runs.weights(tmp_path) == runs.weights(undisturbed_pair)
    assert runs.losses(tmp_path) == runs.losses(undisturbed_pair)


def test_bad_input_ends_every_process_with_one_line(flags, tmp_path):
    for done in runs.finish_many(runs.start_many(2, *flags, "--config.runtime.mesh.data=3", f"--workdir={tmp_path}")):
        assert done.returncode == 2
        assert "is not the 2 devices of the run; set runtime.mesh.data=0" in done.stderr.splitlines()[-1]


def test_a_defect_in_one_process_ends_all(flags, tmp_path):
    """The others end before the heartbeat times out after 100 seconds."""
    faulty = "--config.tasks.bert.objective.kind=tests.faulty_objective:Faulty"
    first, second = runs.finish_many(runs.start_many(2, *flags, faulty, f"--workdir={tmp_path}"))
    assert (first.returncode, second.returncode) == (1, 1)
    assert first.stderr.splitlines()[-1] == "error: process 1: a defect in process 1"
    assert "ValueError: a defect in process 1" in second.stderr and "Traceback" in second.stderr


def test_a_heartbeat_that_only_the_writer_reads_ends_all_if_it_cannot(flags, tmp_path):
    """Nobody waits for it until JAX aborts the others."""
    (tmp_path / "heartbeat.json").mkdir()
    first, second = runs.finish_many(runs.start_many(2, *flags, SOON, f"--workdir={tmp_path}"))
    assert first.returncode == second.returncode != -signal.SIGABRT, second.stderr
    assert "heartbeat.json" in first.stderr.splitlines()[-1]
    assert "process 0: " in second.stderr.splitlines()[-1] or "heartbeat.json" in second.stderr.splitlines()[-1]


def test_sigterm_to_one_in_an_evaluation_ends_it_in_both_at_the_same_batch(flags, tmp_path):
    """The evaluation is endless, so nothing else ends it."""
    ended = runs.finish_many(runs.start_many(2, *flags, f"--workdir={tmp_path}", fault="endless_evaluation"))
    assert [done.returncode for done in ended] == [STOPPED, STOPPED], ended[0].stderr + ended[1].stderr
    batches = [done.stderr.rpartition("evaluated batches: ")[2].split()[0] for done in ended]
    assert batches[0] == batches[1]
    assert max(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == 50
    assert not any("eval/heldout/mlm_loss" in record for record in runs.records(tmp_path / "metrics.jsonl"))


def test_processes_with_workdirs_of_their_own_write_nothing(flags, tmp_path, monkeypatch):
    monkeypatch.setenv("FOLDER", str(tmp_path))
    for done in runs.finish_many(runs.start_many(2, *flags, fault="private_workdir")):
        assert done.returncode == 2
        assert "is not the workdir of process 0; name one that all processes share" in done.stderr.splitlines()[-1]
    assert {path.name for path in (tmp_path / "0").iterdir()} <= {".lock"}
