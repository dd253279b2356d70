"""One run in several processes: it equals the run of one process, and survives the end of each of them."""

import json
import random
import signal
from pathlib import Path

import pytest

from bertjax.runtime.command_line import STOPPED
from tests import runs
from tests.faults.test_moved_corpus import without

pytestmark = pytest.mark.slow
STEPS = 40
SOON = "--config.runtime.heartbeat_timeout=10"


@pytest.fixture(scope="module")
def short(flags) -> list[str]:
    """The command line of a run of forty steps, without its workdir."""
    return [*flags, f"--config.stages.0.steps={STEPS}", "--config.eval.every=20", "--config.runtime.save_every=5"]


@pytest.fixture(scope="module")
def pair(short, tmp_path_factory):
    """Workdir of this run, trained by two processes that nothing disturbed."""
    workdir = tmp_path_factory.mktemp("pair") / "run"
    for done in runs.finish_many(runs.start_many(2, *short, f"--workdir={workdir}")):
        assert done.returncode == 0, done.stderr
    return workdir


def test_two_processes_train_like_one(short, pair, tmp_path):
    """The first loss to 1e-5, no other one off by more than 1e-4."""
    assert runs.call(*short, f"--workdir={tmp_path}") == 0
    pairs = list(zip(runs.losses(pair), runs.losses(tmp_path), strict=True))
    assert len(pairs) == STEPS
    for (step, *losses), (other_step, *other_losses) in pairs:
        assert step == other_step
        assert losses == pytest.approx(other_losses, rel=1e-5 if step == 1 else 1e-4), step
    one, two = (json.loads((root / "summary.json").read_text()) for root in (tmp_path, pair))
    assert two["eval"] == pytest.approx(one["eval"], rel=1e-4) and two["tokens"] == one["tokens"]
    assert [start["processes"] for start in runs.records(pair / "starts.jsonl")] == [2]
    samples = [[r["step"] for r in runs.records(root / "samples.jsonl")] for root in (tmp_path, pair)]
    assert samples[0] == samples[1] == [20, 40]


def test_stopped_and_each_of_two_killed_and_equal_bit_for_bit(short, pair, tmp_path):
    """SIGHUP to one stops both. The last start has no corpus, and process 1 sees the record of the run late."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    print(f"seed {seed}")
    processes = runs.start_many(2, *short, f"--workdir={tmp_path}", fault="stops_only")
    runs.wait_for_step(tmp_path, draw.randint(1, 9), processes[0])
    processes[1].send_signal(signal.SIGHUP)
    first, second = runs.finish_many(processes)
    assert (first.returncode, second.returncode) == (STOPPED, STOPPED), first.stderr + second.stderr
    last_step = max(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
    assert last_step < STEPS
    assert first.stdout.splitlines()[-1].startswith(f"stopped and saved at step {last_step}; to resume: ")

    for killed in range(2):
        # A step that this start itself logs: before it, the two may not have met, and a peer that never came is
        # waited for as long as a slow one.
        logged = max(step for step, *_ in runs.losses(tmp_path))
        processes = runs.start_many(2, *short, SOON, f"--workdir={tmp_path}", fault="never_ends")
        runs.wait_for_step(tmp_path, min(logged + draw.randint(1, 5), STEPS), processes[0])
        processes[killed].kill()
        ended = runs.finish_many(processes)
        assert ended[killed].returncode == -signal.SIGKILL
        # It detects the loss itself (1), or JAX's coordination service ends it.
        assert ended[1 - killed].returncode in (1, -signal.SIGABRT), ended[1 - killed].stderr

    [corpus] = [Path(flag.partition("=")[2]) for flag in short if flag.startswith("--config.data.corpus=")]
    with without(corpus):
        for done in runs.finish_many(runs.start_many(2, *short, f"--workdir={tmp_path}", fault="late_record")):
            assert done.returncode == 0, done.stderr
    assert runs.weights(tmp_path) == runs.weights(pair)
    assert runs.losses(tmp_path) == runs.losses(pair)


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
    early = [*flags, "--config.eval.every=3", f"--workdir={tmp_path}"]
    ended = runs.finish_many(runs.start_many(2, *early, fault="endless_evaluation"))
    assert [done.returncode for done in ended] == [STOPPED, STOPPED], ended[0].stderr + ended[1].stderr
    batches = [done.stderr.rpartition("evaluated batches: ")[2].split()[0] for done in ended]
    assert batches[0] == batches[1]
    assert max(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == 3
    assert not any("eval/heldout/mlm_loss" in record for record in runs.records(tmp_path / "metrics.jsonl"))


def test_processes_with_workdirs_of_their_own_end_in_one_line_and_write_nothing(flags, tmp_path, monkeypatch):
    monkeypatch.setenv("FOLDER", str(tmp_path))
    for done in runs.finish_many(runs.start_many(2, *flags, fault="private_workdir")):
        assert done.returncode == 2
        assert "is not the workdir of process 0; name one that all processes share" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "0").exists()
