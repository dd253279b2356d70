"""The command that reports the status of runs."""

import json
import subprocess
import sys
import time

import fsspec
import pytest
from etils import epath

from bertjax.cli import report, status
from bertjax.runtime import command_line
from tests.comparison.workdirs import STEPS, record, write
from tests.data.test_remote import Bucket

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
    content = {"step": step, "time": time.time() - age, "state": state, "steps": STEPS, "hang_timeout": 600.0}
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
        ("training", 400.0, "stalled", 1),
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


def test_steps_of_an_unknown_rate_may_take_their_time(runs):
    beat(write(runs / "run", RECORDS[:1]), "training", age=400.0)
    assert call("run") == 0


def test_the_worst_run_of_several_decides_the_exit_code(runs, capsys):
    for state in ("training", "finished", "stopped", "failed"):
        beat(write(runs / state, RECORDS), state)
    assert call("training", "finished") == 0
    assert call("training", "stopped", "finished") == 75
    assert call("stopped", "failed", "training") == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [row.split("│")[1].strip() for row in rows[-3:]] == ["stopped", "failed", "training"]


def test_a_failed_run_has_a_reason(runs, capsys):
    for state, name in (("failed", "run"), ("training", "again")):
        beat(write(runs / name, RECORDS), state)
        record = json.loads((runs / name / "heartbeat.json").read_text()) | {"failure": "no space is left"}
        (runs / name / "heartbeat.json").write_text(json.dumps(record))
    assert call("run", "again") == 1
    assert "failure     run: no space is left" in capsys.readouterr().out.splitlines()
    assert [each.failure for each in status.run(["run", "again"])[0]] == ["no space is left", None]


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


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "the following arguments are required: WORKDIR; see python -m bertjax status --help"),
        (["nowhere"], "nowhere is not a folder; name the workdir of a run"),
        (["ftp://host/run"], "workdir ftp://host/run is on unknown storage; use a folder, gs:// or s3://"),
        (["empty"], "empty has no config.json; name the workdir of a run"),
        (["run.txt"], "run.txt is not a folder; name the workdir of a run"),
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
