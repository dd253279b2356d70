"""Several runs of one command: sweeps and seeds."""

import errno
import json
import math
import shutil
from pathlib import Path

import jax
import pytest
from etils import epath

from bertjax.cli import train
from bertjax.config import export
from bertjax.config.config import from_dict
from bertjax.runtime import command_line
from bertjax.runtime.errors import Busy, RunFailed, Unavailable, UserError
from bertjax.runtime.storage import StorageError
from bertjax.training import each, sweep
from bertjax.training.each import Results, Summary, Trial, run_each
from bertjax.training.hooks.base import Hook
from bertjax.training.run.checkpoint import NotSaved
from bertjax.training.run.workdir import Workdir, read_json
from bertjax.training.sweep import combinations
from tests import runs
from tests.comparison.workdirs import CONFIG, STEPS, record, write

BASE = from_dict(CONFIG)


def test_combinations_are_all_and_have_names():
    assert combinations(["optimizer.learning_rate=2e-5,5e-5", "data.corpus=a/b,c"]) == {
        "optimizer.learning_rate=2e-5,data.corpus=a_b": ("optimizer.learning_rate=2e-5", "data.corpus=a/b"),
        "optimizer.learning_rate=2e-5,data.corpus=c": ("optimizer.learning_rate=2e-5", "data.corpus=c"),
        "optimizer.learning_rate=5e-5,data.corpus=a_b": ("optimizer.learning_rate=5e-5", "data.corpus=a/b"),
        "optimizer.learning_rate=5e-5,data.corpus=c": ("optimizer.learning_rate=5e-5", "data.corpus=c"),
    }
    assert list(combinations(["a.rate=1", "b.rate=2,3"])) == ["a.rate=1,b.rate=2", "a.rate=1,b.rate=3"]
    assert combinations(["m.width=128+m.heads=2,m.width=1e+3+m.heads=4"]) == {
        "m.width=128,m.heads=2": ("m.width=128", "m.heads=2"),
        "m.width=1e_3,m.heads=4": ("m.width=1e+3", "m.heads=4"),
    }
    assert [*combinations(["init_from=seed=0,seed=1"]).values()] == [("init_from=seed=0",), ("init_from=seed=1",)]
    assert [*combinations(["x='a+b=1',c"]).values()] == [("x='a+b=1'",), ("x=c",)]
    values = [value for (value,) in combinations(["x=[1,2],(3,),'a,]',4"]).values()]
    assert values == ["x=[1,2]", "x=(3,)", "x='a,]'", "x=4"]
    long = combinations(["data.corpus=" + "\uac00" * 80 + "/a," + "\uac00" * 80 + "/b"])
    assert len(long) == 2 and max(len(folder.encode()) for folder in long) < 220


@pytest.mark.parametrize(
    "sweeps, complaint",
    [
        (["a.b"], "has an empty name or value; write --sweep=optimizer"),
        (["a.b=1,"], "has an empty name or value"),
        (["a.b=1", "a.b=2"], "repeats a.b; list all its values in one --sweep, with commas"),
        (["optimizer.ema_decay=0.9,0.99"], "does not change the last weights, by which results are ranked; train one"),
        (["a.b=1+a.c=2,a.b=2+a.d=3"], "sets a.b, a.c, then a.b, a.d; name the same settings each time"),
        (["a.c=1", "a.b=1+a.c=2"], "repeats a.c; list all its values in one --sweep"),
        (["a.b=1,1"], "two combinations of --sweep have the folder a.b=1; list each value once"),
    ],
)
def test_bad_sweeps(sweeps, complaint):
    with pytest.raises(UserError, match=complaint):
        combinations(sweeps)


@pytest.mark.parametrize("flag", ["--config.seed=5", "--sweep=seed=5,6"])
def test_seeds_are_chosen_once(flag, tmp_path):
    """Otherwise the seed would be replaced silently, or a sweep would train the same seeds twice."""
    with pytest.raises(UserError, match="^--seeds=3 sets the seeds 0 to 2, not seed=5.*; leave one out$"):
        train.main(["--config=tiny", "--seeds=3", flag, f"--workdir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()


def trials(*folders: str) -> list[Trial]:
    return [Trial(folder, BASE) for folder in folders]


WHOLE: list[Path] = []  # an export of a run of STEPS steps


@pytest.fixture(scope="module", autouse=True)
def whole_export(undisturbed, tmp_path_factory):
    WHOLE[:] = [shutil.copytree(undisturbed / "export", tmp_path_factory.mktemp("whole") / "export")]
    manifest = WHOLE[0] / export.MANIFEST
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content | {"numbers": content["numbers"] | {"steps": STEPS}}))


def finish(workdir, loss: float, finished: bool = True) -> bool:
    """All steps are done and evaluated; a run that is not finished has not exported."""
    write(workdir, [record(STEPS, 4.0, loss)], baseline={"unigram_loss": 6.5}, finished=finished)
    if finished:
        shutil.copytree(WHOLE[0], workdir / "export")
    return True


def call(root, all_trials, train) -> Results:
    def run(trial, files, beside):
        is_finished = train(trial, files.root)
        return Summary(STEPS, is_finished, read_json(files.summary) if is_finished else {}, files.path)

    return run_each(epath.Path(root), all_trials, run, lambda: False)


def read(root, *folders: str) -> Results:
    return Results(figures={folder: read_json(Workdir.at(root / folder).summary) for folder in folders})


def test_a_second_call_trains_only_what_is_not_finished(tmp_path):
    trained = []

    def train(trial, workdir):
        trained.append(trial.folder)
        if workdir.exists():
            workdir.rmtree()
        finish(workdir, 1.0, finished=len(trained) != 2)
        return len(trained) != 2

    assert call(tmp_path, trials("a", "b", "c"), train).is_stopped, "in the second run"
    assert list(call(tmp_path, trials("a", "b", "c", "d"), train).figures) == ["a", "b", "c", "d"]
    assert trained == ["a", "b", "b", "c", "d"]


@pytest.mark.slow
def test_runs_of_other_processes_are_left_to_them_and_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(each, "_SECONDS_BETWEEN_ROUNDS", 0.0)
    tries = []

    def train(trial, workdir):
        tries.append(trial.folder)
        if trial.folder == "a" and tries.count("a") == 1:
            raise Busy("in use")
        if trial.folder == "a":  # the other process has finished it meanwhile
            finish(workdir, 1.0)
            raise Busy("in use")
        return finish(workdir, 2.0)

    assert list(call(tmp_path, trials("a", "b"), train).figures) == ["a", "b"]
    assert tries == ["a", "b", "a"] and "waiting for runs of other processes: a" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("outage", [Unavailable("503"), StorageError(errno.EIO, "Input/output error", "run")])
def test_an_outage_is_no_result_of_a_run(tmp_path, outage):
    """The others are trained, and the sweep ends with the code after which launchers run it again."""

    def train(trial, workdir):
        if trial.folder == "b" and not tried:
            tried.append(trial)
            raise outage
        return finish(workdir, 1.0)

    tried = []
    with pytest.raises(Unavailable, match="1 of 3 runs could not be trained now, first b: ") as raised:
        call(tmp_path, trials("a", "b", "c"), train)
    assert command_line.code_for(raised.value) == command_line.STOPPED
    assert list(call(tmp_path, trials("a", "b", "c"), train).figures) == ["a", "b", "c"]


@pytest.mark.slow
def test_a_run_that_fails_ends_no_sweep_and_is_never_best(tmp_path):
    def train(trial, workdir):
        if trial.folder == "high/seed=1":
            raise RunFailed("loss is not finite")
        if trial.folder == "low/seed=1":
            raise TypeError("indices must be integers")  # in an objective of the user
        return finish(workdir, {"high": 1.0, "middle": 2.0, "low": 3.0}[trial.folder.partition("/")[0]])

    planned = trials(*(f"{name}/seed={seed}" for name in ("high", "low", "middle") for seed in range(2)))
    ended = call(tmp_path, planned, train)
    assert ended.failures == {"high/seed=1": "loss is not finite", "low/seed=1": "TypeError: indices must be integers"}
    results = sweep.write(epath.Path(tmp_path), planned, ended)
    assert [(result["folder"], result["metric"], result["values"]) for result in results] == [
        ("middle", "mlm_loss", [2.0, 2.0]),
        ("high", "mlm_loss", [1.0]),
        ("low", "mlm_loss", [3.0]),
    ]
    assert json.loads((tmp_path / "middle/seeds.json").read_text())["metrics"]["mlm_loss"]["values"] == [2.0, 2.0]
    assert not (tmp_path / "high/seeds.json").exists()


def test_a_number_that_is_not_finite_is_a_failure_of_its_seed(tmp_path):
    """A summary holds a null in its place. The mean of the other seeds must not win."""
    losses = {"stable/seed=0": 2.0, "stable/seed=1": 2.1, "unstable/seed=0": 1.0, "unstable/seed=1": math.nan}
    for folder, loss in losses.items():
        finish(tmp_path / folder, loss)
    results = sweep.write(epath.Path(tmp_path), trials(*losses), read(tmp_path, *losses))
    assert [(result["folder"], len(result["failures"])) for result in results] == [("stable", 0), ("unstable", 1)]


def test_combinations_are_ranked_within_one_held_out_task_only(tmp_path, capsys, monkeypatch):
    """The loss at 40% of the tokens says nothing about the loss at 15%; rates of learning are ranked within each."""

    def with_rate(masking: float, learning: float):
        masked = {"kind": "bert", "masking": {"kind": "tokens", "rate": masking}}
        settings = {"optimizer": {"warmup_steps": 2, "learning_rate": learning}}
        return settings | {"tasks": {"bert": {"objective": masked}}}

    losses = {(0.15, 1e-3): 3.0, (0.15, 1e-4): 2.0, (0.4, 1e-3): 1.0, (0.4, 1e-4): 1.5}
    planned = []
    for (masking, learning), loss in losses.items():
        settings, folder = with_rate(masking, learning), f"rate={masking},{learning}"
        planned.append(Trial(folder, from_dict(CONFIG | settings)))
        write(tmp_path / folder, [record(STEPS, 4.0, loss)], settings, baseline={})
    results = sweep.write(epath.Path(tmp_path), planned, read(tmp_path, *(trial.folder for trial in planned)))
    assert [result["folder"] for result in results] == ["rate=0.15,0.0001", "rate=0.15,0.001", "rate=0.4,0.001",
                                                     "rate=0.4,0.0001"]  # fmt: skip
    monkeypatch.setenv("COLUMNS", "160")
    first, second, apart, *_ = sweep.lines_of(epath.Path(tmp_path), results)
    assert "objective.masking.rate: 0.15 -> 0.4" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert first.startswith(f"best      {tmp_path}/rate=0.15,0.0001  (of 2 ")
    assert second.startswith(f"best      {tmp_path}/rate=0.4,0.001  (of 2 ")
    assert "2 different held-out tasks" in apart
    assert "best" not in sweep.lines_of(epath.Path(tmp_path), results[1:3])[0]
    assert sweep.lines_of(epath.Path(tmp_path), results[:2])[0] == f"best      {tmp_path}/rate=0.15,0.0001"


def test_bad_input_ends_a_sweep_at_its_first_run_only(tmp_path):
    def train(trial, workdir):
        if trial.folder == "bad":
            raise UserError("rate=2.0 must be between 0 and 1")
        return finish(workdir, 1.0)

    with pytest.raises(UserError, match="rate=2.0"):
        call(tmp_path / "first", trials("bad", "a"), train)
    later = call(tmp_path / "later", trials("a", "bad", "b"), train)
    assert later.failures == {"bad": "rate=2.0 must be between 0 and 1"}
    assert (tmp_path / "later" / "b").exists()


@pytest.mark.slow
def test_a_sweep_from_the_command_line(tmp_path, capsys):
    """Two rates, one of which is far too low to learn anything; `compare` reads what the sweep prints."""
    from bertjax.cli import compare
    from tests import runs

    corpus = runs.write_corpus(tmp_path / "corpus.txt")
    flags = [f"--config={runs.CONFIG}", f"--config.data.corpus={corpus}", f"--workdir={tmp_path / 'sweep'}"]
    flags += ["--sweep=optimizer.learning_rate=1e-7,3e-3"]
    assert runs.call(*flags) == 0
    output = capsys.readouterr().out
    assert (
        f"best      {tmp_path}/sweep/optimizer.learning_rate=3e-3" in output and "development set: mlm_loss" in output
    )
    best, worst = json.loads((tmp_path / "sweep/results.json").read_text())
    assert best["folder"] == "optimizer.learning_rate=3e-3" and best["mean"] < worst["mean"]
    assert best["settings"] == {"optimizer.learning_rate": "3e-3"} and best["parameters"] > 1000 and best["flops"] > 1e6
    assert runs.call(*flags) == 0
    assert "run       " not in capsys.readouterr().out, "all runs are finished"
    assert runs.call(*flags, "--config.seed=3") == 2, "their settings are others"
    assert "has a sweep with other settings: seed: 0 -> 3; use another --workdir" in capsys.readouterr().err
    folders = [str(tmp_path / "sweep" / result["folder"]) for result in (best, worst)]
    assert command_line.exit_code_of(lambda: compare.main([*folders, "--json", f"--out={tmp_path / 'a.png'}"])) == 0
    numbers = json.loads(capsys.readouterr().out)["numbers"]
    assert all(of_run["spent"]["parameters"]["mean"] > 1000 for of_run in numbers.values())


MEASURED: list[int] = []


class LiveBytes(Hook):
    """Notes the bytes on the device when a run has its state."""

    def on_start(self, run):
        MEASURED.append(sum(array.nbytes for array in jax.live_arrays()))


class Diverging(Hook):
    """Fails the second seed in its second step."""

    def on_step(self, run, step, metrics):
        if step == 2 and run.config.seed == 1:
            raise RunFailed("the loss is not finite")


@pytest.mark.slow
@pytest.mark.parametrize("failing, code", [({1}, 0), ({0, 1, 2}, 1)])
def test_a_seed_that_diverges_does_not_end_the_others(monkeypatch, tmp_path, capsys, failing, code):
    def run(config, workdir, **options):
        if config.seed in failing:
            raise RunFailed("the loss is not finite")
        return train.Summary(100, True, {"eval": {"mlm_loss": float(config.seed)}, "baseline": {}}, tmp_path / "seed=2")

    monkeypatch.setattr(train, "run", run)

    command = ["--config=tiny", "--seeds=3", f"--workdir={tmp_path}"]
    assert command_line.exit_code_of(lambda: train.main(command)) == code
    if code == 0:
        spread = json.loads((tmp_path / "seeds.json").read_text())
        assert (
            spread["metrics"]["mlm_loss"]["values"] == [0.0, None, 2.0] and spread["metrics"]["mlm_loss"]["mean"] == 1
        )
        assert spread["failures"] == {"seed=1": "the loss is not finite"}
        assert "seed=1 failed: the loss is not finite" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "error, at, code",
    [
        (RunFailed("the loss is not finite"), 0, command_line.STOPPED),  # stopped before a seed has finished
        (NotSaved("the state of a stop is not saved"), 2, command_line.FAILED),  # not the result of the last seed
        (StorageError(errno.ENOSPC, "No space left on device"), 1, command_line.FAILED),
        (jax.errors.JaxRuntimeError("INTERNAL: device lost"), 1, command_line.FAILED),
    ],
)
def test_what_belongs_to_the_machine_is_no_result(monkeypatch, tmp_path, error, at, code):
    """A launcher starts the same command again."""
    started = []

    def run(config, workdir, **options):
        started.append(config.seed)
        if config.seed == at:
            raise error
        return train.Summary(100, True, {"eval": {}, "baseline": {}}, tmp_path)

    monkeypatch.setattr(train, "run", run)
    monkeypatch.setattr(train, "stop_signal", lambda: lambda: at == 0)
    command = ["--config=tiny", "--seeds=3", f"--workdir={tmp_path}"]
    try:
        assert command_line.exit_code_of(lambda: train.main(command)) == code
    except jax.errors.JaxRuntimeError:  # Python ends with 1, and with the traceback of a defect
        assert code == command_line.FAILED
    assert started == list(range(at + 1))


@pytest.mark.slow
def test_seeds_read_the_same_data_and_release_their_state(flags, tmp_path, capsys):
    """A corpus that has changed between two seeds would make one mean of two experiments."""
    corpus = runs.write_corpus(tmp_path / "corpus.txt")
    own = [*flags, f"--config.data.corpus={corpus}", "--config.stages.0.steps=8", "--config.eval.every=8"]
    hooks = [f"--config.runtime.hooks=('{__name__}:LiveBytes','{__name__}:Diverging')"]
    MEASURED.clear()
    assert runs.call(*own, *hooks, f"--workdir={tmp_path / 'run'}", "--seeds=3") == 0
    assert MEASURED[0] == MEASURED[1] == MEASURED[2] > 0
    corpus.write_text(corpus.read_text() + "\n\nOne more document. It has two sentences.\n")
    capsys.readouterr()
    assert runs.call(*own, *hooks, f"--workdir={tmp_path / 'run'}", "--seeds=4") == 2
    assert "does not read what" in capsys.readouterr().err
    assert not (tmp_path / "run" / "seed=3" / "checkpoints").exists()
