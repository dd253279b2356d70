"""Training from end to end: what it writes, and what the same command does the next time."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import pytest

from bertjax.config import export
from bertjax.runtime.errors import UserError
from bertjax.training.results import rescore
from bertjax.training.run.fingerprints import fingerprints
from bertjax.training.run.record import check_identity, read_checkpoint, read_record
from bertjax.training.run.watchdog import Watchdog
from bertjax.training.run.workdir import Workdir
from tests import runs
from tests.toy_objective import Toy


def test_a_run_writes_its_results(undisturbed):
    summary = json.loads((undisturbed / "summary.json").read_text())
    names = {
        "finished",
        "eval",
        "baseline",
        "parameters",
        "tokens",
        "flops",
        "steps",
        "seconds",
        "tokens_per_second",
        "accounts",
    }
    assert set(summary) == names and summary["finished"]
    assert {"mlm_loss", "mlm_accuracy", "nsp_accuracy"} <= set(summary["eval"])
    assert set(summary["baseline"]) == {"unigram_loss", "majority_accuracy", "nsp_majority"}
    assert summary["steps"] == 100 and summary["tokens"] <= 100 * 8 * 32
    assert [record["step"] for record in runs.records(undisturbed / "samples.jsonl")] == [50, 100]
    assert sorted(int(path.name) for path in (undisturbed / "checkpoints").iterdir()) == [40, 80, 90, 100]
    assert (undisturbed / "curves.png").stat().st_size and list((undisturbed / "events").iterdir())
    first, *_, last = runs.losses(undisturbed)
    assert last[1] < first[1]


@pytest.mark.slow
def test_a_run_that_is_older_than_a_setting_resumes(undisturbed, tmp_path):
    """Its default is what the run had all along; another value is another run."""
    shutil.copytree(undisturbed, tmp_path / "run")
    files = Workdir.at(tmp_path / "run")
    now = read_record(files)
    path = tmp_path / "run" / "config.json"
    record = json.loads(path.read_text())
    for half in ("config", "settings", "identity"):
        del record[half]["model"]["activation"], record[half]["init_layers"], record[half]["stages"][0]["layers"]
    path.write_text(json.dumps(record))
    assert check_identity(files, now, longer=False)
    other = dataclasses.replace(now.settings, model=dataclasses.replace(now.settings.model, activation="relu"))
    with pytest.raises(UserError, match="holds a run with other settings .model.activation"):
        check_identity(files, dataclasses.replace(now, settings=other), longer=False)


def test_a_start_that_is_refused_changes_no_file_of_the_run(flags, undisturbed, tmp_path, capsys):
    """Also one that is refused by the checkpoint, after its settings were compared with the record."""
    shutil.copytree(undisturbed, workdir := tmp_path / "run")
    before = runs.content(workdir)
    longer = ["--longer", "--config.stages.0.steps=200", "--config.runtime.skip_rows=[[40,50]]"]
    assert runs.call(*flags, f"--workdir={workdir}", *longer) == 2
    assert "checkpoint 100 was trained with runtime.skip_rows=[]" in capsys.readouterr().err.splitlines()[-1]
    after = runs.content(workdir)
    assert {name for name in before | after if before.get(name) != after.get(name)} <= {".lock", "heartbeat.json"}


@pytest.mark.slow
def test_longer_training_needs_a_flag_and_is_recorded(flags, undisturbed, tmp_path, capsys, monkeypatch):
    """Its steps come in dispatches of five, each of which is one beat for the watchdog: their metrics come together."""
    workdir, beats, beat = tmp_path / "run", [], Watchdog.beat
    monkeypatch.setattr(Watchdog, "beat", lambda *arguments: (beats.append(arguments[1:]), beat(*arguments)))
    shutil.copytree(undisturbed, workdir)
    longer = [*flags, "--config.stages.0.steps=110", f"--workdir={workdir}"]
    assert runs.call(*longer) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "stages.0.steps: 100 -> 110" in error and "--longer" in error
    assert runs.call(*longer, "--longer", "--config.runtime.steps_per_call=5") == 0
    assert [step for (step,) in filter(None, beats)] == [105, 110]
    assert [step for step, *_ in runs.losses(workdir)] == list(range(1, 111))
    assert runs.losses(workdir)[:100] == runs.losses(undisturbed)
    assert [start["longer"] for start in runs.records(workdir / "starts.jsonl")] == [False, True]
    assert json.loads((workdir / "summary.json").read_text())["steps"] == 110


@pytest.mark.slow
def test_chosen_steps_are_kept_and_change_nothing(flags, tmp_path, caplog):
    brief = [*flags, "--config.stages.0.steps=12", "--config.eval.every=12", "--config.runtime.save_every=2"]
    brief += ["--config.runtime.keep=1", "--config.runtime.steps_per_call=4"]
    plain, run = tmp_path / "plain", tmp_path / "run"

    assert runs.call(*brief, f"--workdir={plain}") == 0
    assert runs.call(*brief, "--config.runtime.keep_at=[0,1,5,3]", f"--workdir={run}") == 0
    assert saved_steps(run) == [0, 1, 3, 5, 8, 12], "4 was saved, too"
    assert runs.weights(run) == runs.weights(plain)
    initial = read_checkpoint(run, "0")
    assert initial.numbers["steps"] == 0 and initial.numbers["tokens"] == 0
    assert float(initial.params["heads"]["mlm"]["word_bias"].std()) == 0.0, "a bias starts at 0"

    for step in (1, 3, 5, 8, 12):
        shutil.rmtree(run / "checkpoints" / str(step))
    assert runs.call(*brief, "--config.runtime.keep_at=[0,3]", f"--workdir={run}") == 0
    assert saved_steps(run) == [0, 3, 8, 12]
    assert runs.weights(run) == runs.weights(plain) and runs.losses(run) == runs.losses(plain)
    assert runs.call(*brief, "--config.runtime.keep_at=[1,3,12]", f"--workdir={run}") == 0
    warned = [record.getMessage() for record in caplog.records if "keep_at" in record.getMessage()]
    assert warned == [
        "runtime.keep_at has step 1, and the run has passed them without a checkpoint; it continues from step 12"
    ]


def saved_steps(workdir: Path) -> list[int]:
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [0, 3])
def test_a_loss_that_is_not_finite_ends_the_run_or_is_skipped(flags, tmp_path, capsys, allowed):
    """Each update is so large that its norm is not finite."""
    too_fast = ["--config.optimizer.learning_rate=1e30", "--config.optimizer.warmup_steps=0"]
    code = runs.call(*flags, *too_fast, f"--config.runtime.max_skipped={allowed}", f"--workdir={tmp_path}")
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert code == 1 and len(errors) == 1
    assert f"not finite at step {1 + allowed} " in errors[0] and "learning_rate" in errors[0]
    assert not (tmp_path / "export").exists()


@pytest.mark.slow
def test_an_objective_from_elsewhere_trains_and_exports(flags, tmp_path):
    toy = [*flags, "--config.tasks.toy.objective.kind=tests.toy_objective:Toy"]
    brief = ["--config.stages.0.steps=20", "--config.eval.every=10"]
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert runs.call(*toy, *brief, f"--workdir={whole}") == 0
    shutil.copytree(whole, parted)
    shutil.rmtree(parted / "checkpoints" / "20")
    assert runs.call(*toy, *brief, f"--workdir={parted}") == 0
    assert runs.weights(whole) == runs.weights(parted)

    records = runs.records(whole / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, 21))
    assert records[-1]["train/teacher_loss"] < records[0]["train/teacher_loss"]
    summary = json.loads((whole / "summary.json").read_text())
    assert set(summary["eval"]) == {"teacher_loss", "second_loss", "mean_norm", "scored"}
    assert summary["eval"]["scored"] == 16
    assert not (whole / "export" / "hf").exists()  # transformers has no class with these heads
    for scores in (rescore.run(str(whole)), rescore.run(f"{parted}@20"), runs.score_export(whole)):
        assert scores["eval"] == pytest.approx(summary["eval"], rel=1e-6)


@pytest.mark.slow
def test_a_frozen_teacher_identifies_the_run_and_is_not_saved(flags, tmp_path):
    toy = [*flags, "--config.tasks.toy.objective.kind=tests.toy_objective:Toy", f"--workdir={tmp_path}"]
    assert runs.call(*toy, "--config.stages.0.steps=20", "--config.eval.every=10") == 0
    saved = read_checkpoint(tmp_path, "20")
    assert set(saved.params) == set(export.read(tmp_path / "export").params) == {"encoder", "heads"}
    identity = json.loads((tmp_path / "config.json").read_text())["identity"]
    assert identity["frozen"] == fingerprints(Toy().frozen_params(saved.encoder))
    assert fingerprints(jax.device_get(Toy(teacher_seed=8).frozen_params(saved.encoder))) != identity["frozen"]
