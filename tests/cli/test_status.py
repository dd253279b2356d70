"""The command that reports the status of runs."""

import json
import shutil
import subprocess
import sys
import time

import fsspec
import pytest
from etils import epath

from bertjax.cli import report, status
from bertjax.runtime import command_line
from bertjax.runtime.errors import Unavailable
from tests.comparison.workdirs import STEPS, record, write
from tests.data.test_remote import Bucket
from tests.object_store import ObjectStore

RECORDS = [record(1, 6.0), record(10, 5.0, 5.5)]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The folder for runs, which is the working folder; time stands still, so that ages are exact."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def beat(root, state: str, step: int = 12, age: float = 3.0) -> None:
    """Write the sign of life of a process that was in this state some seconds ago."""
    content = {"step": step, "time": time.time() - age, "state": state, "steps": STEPS}
    (root / "heartbeat.json").write_text(json.dumps(content))


def save(root, step: int, age: float) -> None:
    """Write what the command reads of a checkpoint: 8 of 10 seconds went into steps."""
    folder = root / "checkpoints" / str(step)
    (folder / "meta").mkdir(parents=True)
    (folder / "_CHECKPOINT_METADATA").write_text(json.dumps({"commit_timestamp_nsecs": (time.time() - age) * 1e9}))
    totals = {"seconds": 10.0, "data_wait_seconds": 0.5, "compile_seconds": 0.5}
    totals |= {"checkpoint_seconds": 0.5, "evaluation_seconds": 0.5}
    (folder / "meta" / "metadata").write_text(json.dumps({"hooks": {"totals": totals}}))
    (root / "elapsed.json").write_text("[12.0, 4.0]")


def call(*arguments: str) -> int:
    return command_line.exit_code_of(lambda: status.main(list(arguments)))


def test_a_live_run(runs, capsys):
    root = write(runs / "live", RECORDS)
    save(root, 8, age=100.0)
    beat(root, "training")
    (root / "starts.jsonl").write_text('{"time": "first"}\n{"time": "second"}\n')
    assert call("live") == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    (root / "starts.jsonl").write_text('{"time": "first"}\n')
    call("live")
    assert "50.0% in 1 start\n" in capsys.readouterr().out
    assert lines == {
        "run": "live",
        "state": "training, last sign of life 3 s ago",
        "step": "12 of 20",
        "ETA": "16 s",  # 8 steps of two seconds
        "checkpoint": "step 8, 1 min 40 s ago",
        "losses": "train/mlm_loss 5.000, eval/heldout/mlm_loss 5.500",
        "goodput": "50.0% in 2 starts",
    }


@pytest.mark.parametrize(
    "state, age, shown, code",
    [
        ("compiling", 200.0, "compiling", 0),
        ("compiling", 400.0, "stalled", 1),
        ("saving", 1e6, "stalled", 1),
        ("training", -50.0, "training", 0),  # the clock of the host is ahead
        ("finished", 1e6, "finished", 0),
        ("failed", 1e6, "failed", 1),
        ("stopped", 1e6, "stopped", 75),
    ],
)
def test_states_and_exit_codes(runs, capsys, state, age, shown, code):
    beat(write(runs / "run", RECORDS), state, age=age)
    assert call("run", "--json") == code
    [printed] = json.loads(capsys.readouterr().out)
    assert printed["state"] == shown and printed["step"] == 12 and printed["steps"] == STEPS


def test_the_worst_run_of_several_decides_the_exit_code(runs, capsys):
    for state in ("training", "finished", "stopped", "failed"):
        beat(write(runs / state, RECORDS), state)
    assert call("training", "finished") == 0
    assert call("training", "stopped", "finished") == 75
    assert call("stopped", "failed", "training") == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [row.split("│")[1].strip() for row in rows[-3:]] == ["stopped", "failed", "training"]


def test_a_bad_path_hides_no_other_run(runs, capsys):
    for seed in range(2):
        beat(write(runs / f"many/seed={seed}", RECORDS), "training")
    (runs / "many/seed=0/heartbeat.json").write_text("{}")
    beat(write(runs / "stopped", RECORDS), "stopped")
    assert call("nowhere", "many", "stopped", "--json") == 2
    output = capsys.readouterr()
    assert [each["workdir"] for each in json.loads(output.out)] == ["many/seed=1", "stopped"]
    assert [line.split()[1] for line in output.err.splitlines()] == ["nowhere", "many/seed=0/heartbeat.json"]


def test_an_unreachable_path_does_not_outweigh_a_failed_run_or_a_bad_path(runs, capsys, monkeypatch):
    def read(workdir):
        if workdir.name == "bucket":
            raise Unavailable("the bucket does not answer")
        return ordinary(workdir)

    ordinary = status.read_status
    monkeypatch.setattr(status, "read_status", read)
    beat(write(runs / "failed", RECORDS), "failed")
    assert [call(*paths) for paths in (["bucket"], ["bucket", "failed"], ["bucket", "nowhere"])] == [75, 1, 2]


def test_long_steps_are_not_a_stall(runs):
    """While a run trains, only its steps are signs of life."""
    root = write(runs / "run", [record(step, 6.0, speed=400.0) for step in (1, 2)])
    for age, state in ((1_100.0, "training"), (1_300.0, "stalled")):
        beat(root, "training", age=age)
        assert status.run(["run"])[0][0].state == state


def test_a_failed_run_has_a_reason(runs, capsys):
    for state, name in (("failed", "run"), ("training", "again")):
        beat(write(runs / name, RECORDS), state)
        record = json.loads((runs / name / "heartbeat.json").read_text()) | {"failure": "no space is left"}
        (runs / name / "heartbeat.json").write_text(json.dumps(record))
    assert call("run", "again") == 1
    assert "failure     run: no space is left" in capsys.readouterr().out.splitlines()
    assert [each.failure for each in status.run(["run", "again"])[0]] == ["no space is left", None]


def test_seeds_are_runs_of_their_own(runs, capsys):
    for seed in range(2):
        beat(write(runs / f"many/seed={seed}", RECORDS), "training")
    assert call("many", "--json") == 0
    assert [each["workdir"] for each in json.loads(capsys.readouterr().out)] == ["many/seed=0", "many/seed=1"]


def test_a_workdir_that_was_copied_without_its_heartbeat(undisturbed, runs, capsys):
    shutil.copytree(undisturbed, runs / "run")
    (runs / "run" / "heartbeat.json").unlink(missing_ok=True)
    assert call("run", "--json") == 0
    [printed] = json.loads(capsys.readouterr().out)
    assert (printed["state"], printed["step"], printed["steps"], printed["checkpoint"]) == ("finished", 100, 100, 100)
    assert printed["goodput"] == json.loads((runs / "run" / "summary.json").read_text())["accounts"]["goodput"]
    assert 0.0 < printed["checkpoint_age_seconds"] < 86_400.0 and printed["starts"] == 1
    summary = json.loads((runs / "run" / "summary.json").read_text())
    (runs / "run" / "summary.json").write_text(json.dumps(summary | {"finished": False}))
    [printed], _ = status.run(["run"])
    assert printed.state == "stopped" and 0.0 < printed.goodput <= 1.0


def test_warnings(runs, capsys):
    root = write(runs / "run", [*RECORDS, record(11) | {"train/mlm_loss": None}])
    spikes = [{"step": step, "name": "mlm_loss", "loss": 9.0, "deviations": 7.0} for step in (2, 3, 4, 5)]
    (root / "spikes.jsonl").write_text("".join(json.dumps(spike) + "\n" for spike in spikes) + '{"step": 6, "na')
    (root / "failures.jsonl").write_text('{"checkpoint": 8, "step": 9, "reason": "a defect", "time": "now"}\n')
    (root / "checkpoints.damaged-8-1").mkdir()
    beat(root, "training")
    assert call("run") == 0
    output = capsys.readouterr().out
    assert [line.split(maxsplit=1)[1] for line in output.splitlines() if line.startswith("warning")] == [
        "mlm_loss of step 5 is 9.000, far above its mean",
        "train/mlm_loss of step 11 is not finite",
        "a start failed at step 9: a defect",
        "checkpoints.damaged-8-1 is a damaged checkpoint, which is not used",
    ]
    assert "train/mlm_loss not finite" in output


def test_only_the_end_of_long_metrics_is_read(runs):
    """No memory would hold the whole file: a terabyte of zeros comes before the records."""
    root = write(runs / "run", [record(step, 5.0, speed=1.0 if step < 500 else 3.0) for step in range(1, 600)])
    lines = (root / "metrics.jsonl").read_bytes()
    with open(root / "metrics.jsonl", "wb") as file:
        file.seek(1 << 40)  # a hole, which takes no space
        file.write(b"\n" + lines)
    beat(root, "training", step=2)
    assert status.run([root])[0][0].seconds_per_step == pytest.approx(3.0)


def test_a_run_that_has_not_started_to_train(runs):
    (runs / "run").mkdir()
    beat(runs / "run", "starting", step=0)
    [starting], _ = status.run(["run"])
    assert (starting.state, starting.step, starting.eta_seconds, starting.losses) == ("starting", 0, None, {})


def test_a_run_in_an_object_store(runs, monkeypatch):
    fsspec.register_implementation("s3", Bucket, clobber=True)
    monkeypatch.setattr(Bucket, "store", {})
    monkeypatch.setattr(Bucket, "pseudo_dirs", [""])
    root = write(runs / "run", RECORDS)
    save(root, 8, age=100.0)
    beat(root, "training")
    remote = epath.Path("s3://bucket/run")
    for path in root.rglob("*"):
        if path.is_file():
            (remote / path.relative_to(root).parent.as_posix()).mkdir(parents=True, exist_ok=True)
            (remote / path.relative_to(root).as_posix()).write_bytes(path.read_bytes())
    [here, there], _ = status.run([root, remote])
    assert there.workdir == "s3://bucket/run"
    assert (there.state, there.step, there.checkpoint, there.losses) == (here.state, here.step, 8, here.losses)
    assert there.goodput == here.goodput == 0.5


@pytest.mark.parametrize("code", [401, 403])
def test_a_bucket_without_rights_is_one_line(capsys, caplog, code):
    """gcsfs logs such an answer with its traceback."""
    with ObjectStore().running() as store, store.used_here():
        store.fault = lambda kind, name: code
        assert command_line.exit_code_of(lambda: status.main([f"gs://bucket-{code}/run"])) == 2
    assert not [record for record in caplog.records if record.name.startswith("gcsfs")]
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: gs://bucket-{code}/run cannot be read: ")
    assert line.endswith("your login (for gs://: gcloud auth application-default login)")


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "the following arguments are required: WORKDIR; see python -m bertjax status --help"),
        (["nowhere"], "nowhere does not exist; name the workdir of a run"),
        (["ftp://host/run"], "workdir ftp://host/run is on unknown storage; use a folder, gs:// or s3://"),
        (["empty"], "empty has no config.json; name the workdir of a run"),
        (["run.txt"], "run.txt is a file; name the workdir of a run"),
        (["cut"], "cut/heartbeat.json is damaged (it has no time, state)"),
        (["broken"], "broken/metrics.jsonl has a damaged line (it is not the record of a step)"),
    ],
)
def test_bad_input_is_one_line(runs, capsys, arguments, complaint):
    (runs / "empty").mkdir()
    (runs / "run.txt").touch()
    (write(runs / "cut", RECORDS) / "heartbeat.json").write_text('{"step": 3}')
    (write(runs / "broken", RECORDS) / "metrics.jsonl").write_text('{"step": 1}\n[3]\n')
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {complaint}") and error.count("\n") == 1


def test_it_starts_without_jax_and_orbax():
    program = (
        "import sys, bertjax.cli.status; print([name for name in ('jax', 'orbax', 'numpy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    "seconds, text",
    [(0.2, "0 s"), (59, "59 s"), (60, "1 min"), (12_000, "3 h 20 min"), (3_605, "1 h"), (180_000, "2 d 2 h")],
)
def test_durations(seconds, text):
    assert status.duration(seconds) == text


def call_of_report(*arguments: str) -> int:
    return command_line.exit_code_of(lambda: report.main(list(arguments)))


def test_a_real_run_has_every_section(undisturbed, tmp_path, capsys):
    target = tmp_path / "new" / "page.html"
    assert call_of_report(str(undisturbed), f"--out={target}") == 0
    output = capsys.readouterr().out
    assert f"page      {target}" in output and f"bertjax analyze {undisturbed}" in output
    html = target.read_text(encoding="utf-8")
    assert "http" not in html.replace('http-equiv="', "") and "Skipped" not in html
    for title in ("Guesses over time", "What a row of data looks like", "Throughput and goodput", "Environment"):
        assert f">{title}</h2>" in html
    assert html.count('class="tokens"') == 2 and html.count("<svg ") >= 3


def test_it_is_written_into_the_workdir_unless_named(tmp_path):
    root = write(tmp_path / "run", [record(10, 6.0), record(STEPS, 4.0)])
    assert report.run(root) == root / "report.html"
    assert "Training run" in (root / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments",
    [("missing",), ("ftp://host/run",), ("run", "--out=page.pdf"), ("run", "--parts=patterns"), ()],
)
def test_bad_input_is_one_line_and_writes_nothing(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    root = write(tmp_path / "run", [record(10, 6.0)])
    before = sorted(root.iterdir())
    assert call_of_report(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert sorted(root.iterdir()) == before and not (tmp_path / "page.pdf").exists()
