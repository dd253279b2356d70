"""Fine-tuning with a teacher from the command line: losses fall, the run resumes, the student stands alone."""

import json
import shutil

import pytest
from safetensors.numpy import load_file, save_file

from bertjax.cli import train
from bertjax.config import config_file, export
from bertjax.data import tokenizer
from bertjax.data.labeled.texts import LabeledText
from bertjax.runtime.errors import UserError
from bertjax.training.results import rescore
from tests import labeled_files, runs

SETTINGS = """
def get_config():
    losses = {
        "soft": {"kind": "logits", "temperature": 2.0},
        "states": {"kind": "hidden", "projection": True},
        "patient": {
            "kind": "hidden",
            "compare": "normalized",
            "on": "summaries",
            "pairs_of_layers": [[1, 2]],
            "factor": 100.0,
        },
        "maps": {"kind": "attention"},
        "relations": {"kind": "relations", "heads": 4},
    }
    return {
        "model": {"preset": "init_from", "layers": 1, "dropout": 0.0},
        "init_layers": [0],
        "tasks": {
            "good": {
                "objective": {"kind": "distilled", "objective": {"kind": "classification"}, "losses": losses},
                "examples": {"kind": "labeled_text"},
            }
        },
        "optimizer": {"learning_rate": 3e-3, "warmup_share": 0.1},
        "stages": [{"epochs": 3.0, "seq_len": 32, "examples": 16}],
        "eval": {"every": 0, "rows": 0, "samples": 0},
        "runtime": {"log_every": 1, "save_every": 10, "keep_best": 1},
    }
"""
LOSSES = ("soft", "states", "patient", "maps", "relations")
OBJECTIVE = "--config.tasks.good.objective"


@pytest.fixture(scope="module")
def files(undisturbed, tmp_path_factory):
    """(the teacher's export, flags of its student without a workdir); the teacher is fine-tuned for a few steps."""
    folder = tmp_path_factory.mktemp("distill")
    (folder / "student.py").write_text(SETTINGS)
    labeled, dev = labeled_files.write(folder)
    own = [f"--config.tasks.good.examples.train={labeled}", f"--config.tasks.good.examples.heldout={dev}"]
    own.append(f"--config.init_from={undisturbed / 'export'}")
    flags = [f"--config={folder / 'student.py'}", *own, f"{OBJECTIVE}={{'kind': 'classification'}}"]
    flags += ["--config.model.layers=2", "--config.init_layers=[]"]
    assert runs.call(*flags, f"--workdir={folder / 'teacher'}") == 0
    teacher = folder / "teacher" / "export"
    more = folder / "more.txt"
    more.write_text("".join(f"{record['sentence']}\n\n" for record in labeled_files.sentences(40, seed=2)))
    student = [f"--config={folder / 'student.py'}", *own, f"--config.tasks.good.objective.teacher={teacher}"]
    student.append(f"--config.tasks.good.examples.unlabeled={more}")
    return teacher, student, dev


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("student") / "run"
    assert runs.call(*files[1], f"--workdir={workdir}") == 0
    return workdir


@pytest.mark.slow
def test_every_loss_against_the_teacher_falls(finished):
    records = [record for record in runs.records(finished / "metrics.jsonl") if "train/soft_loss" in record]
    for name in LOSSES:
        losses = [record[f"train/{name}_loss"] for record in records]
        assert sum(losses[-5:]) < sum(losses[:5]), name
    summary = json.loads((finished / "summary.json").read_text())
    assert {f"{name}_loss" for name in LOSSES} | {"agreement", "accuracy"} <= summary["eval"].keys()


@pytest.mark.slow
def test_the_student_stands_alone(files, finished, tmp_path, monkeypatch):
    """Its export has no projection, and is scored where its teacher is not."""
    monkeypatch.chdir(files[2].parent)  # an export holds the names of its files, not their folders
    assert not any(path.startswith("projections") for path in load_file(finished / "export" / "model.safetensors"))
    shutil.copytree(finished / "export", tmp_path / "alone")
    figures = rescore.run(str(tmp_path / "alone"), corpus=str(files[2]))
    summary = json.loads((finished / "summary.json").read_text())
    assert figures["eval"]["accuracy"] == pytest.approx(summary["eval"]["accuracy"])
    assert "soft_loss" not in figures["eval"]
    [task] = export.read_manifest(finished / "export")["config"]["tasks"].values()
    assert task["objective"]["kind"] == "classification" and "teacher" not in json.dumps(task)
    assert "unlabeled" not in task["examples"]


@pytest.mark.slow
def test_a_stopped_student_resumes_with_the_same_teacher_only(files, finished, tmp_path, capsys):
    teacher, flags, _ = files
    moved = shutil.copytree(teacher, tmp_path / "teacher")
    flags = [flag.replace(str(teacher), str(moved)) for flag in flags]
    first, *overrides = [flag.removeprefix("--config").lstrip("=.") for flag in flags]
    edges = iter(range(1, 1000))
    stopped = train.run(config_file.load(first, overrides), tmp_path / "run", should_stop=lambda: next(edges) == 12)
    assert stopped.step == 12 and not stopped.finished
    weights = load_file(moved / "model.safetensors")
    save_file({path: 2.0 * values for path, values in weights.items()}, moved / "model.safetensors")
    assert runs.call(*flags, f"--workdir={tmp_path / 'run'}") == 2
    assert "frozen.teacher/" in capsys.readouterr().err
    save_file(weights, moved / "model.safetensors")
    assert runs.call(*flags, f"--workdir={tmp_path / 'run'}") == 0
    assert runs.weights(tmp_path / "run") == runs.weights(finished)


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({}, "has no text; give a file with at least one"),
        ({"pair": "other"}, "has one text a line, and a pair has two; name a table"),
    ],
)
def test_unlabeled_files_that_are_refused(tmp_path, settings, complaint):
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(UserError, match=complaint):
        LabeledText(unlabeled=str(tmp_path / "empty.txt"), **settings).further_train()
    with pytest.raises(UserError, match="needs examples.kind=labeled_text and a label"):
        LabeledText(unlabeled="more.txt", label="")


@pytest.mark.parametrize(
    "more, complaint",
    [
        ([f"{OBJECTIVE}.teacher="], "objective.kind=distilled needs a teacher; set objective.teacher to an export"),
        ([f"{OBJECTIVE}.losses={{}}"], "objective.kind=distilled has no objective.losses; set objective.losses="),
        (
            [f"{OBJECTIVE}={{'kind': 'classification'}}"],
            "more.txt needs a teacher, which labels it; set objective.kind=distilled, objective.teacher and ",
        ),
        ([f"{OBJECTIVE}.losses.maps.layer_map=skip"], "compares no layers of a student of 1 and a teacher"),
        ([f"{OBJECTIVE}.losses.maps.layers=1"], "unknown configuration key"),
        ([f"{OBJECTIVE}.losses.soft.kind=relation"], "kind='relation' is unknown; choose one of logits"),
        (
            [f"{OBJECTIVE}={{'kind': 'distilled', 'losses': {{'soft': {{'kind': 'logits'}}}}}}"],
            "tasks.good.objective has no objective; add --config.tasks.good.objective.objective.kind=KIND",
        ),
        (
            [f"{OBJECTIVE}.own_factor=0", *(f"{OBJECTIVE}.losses.{name}.factor=0" for name in LOSSES)],
            "objective.own_factor=0 leaves nothing to learn: every loss of objective.losses=soft, states, ",
        ),
        ([f"{OBJECTIVE}.own_factor=-1"], "objective.own_factor=-1.0 must not be negative"),
    ],
)
def test_bad_settings_are_one_line(files, tmp_path, capsys, more, complaint):
    assert runs.call(*files[1], *more, f"--workdir={tmp_path}") == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1 and not (tmp_path / "config.json").exists()


def test_a_teacher_of_another_tokenizer_is_refused(files, tmp_path, capsys):
    teacher, flags, _ = files
    other, pieces = shutil.copytree(teacher, tmp_path / "other"), ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*pieces, *(f"piece{number}" for number in range(395))]))
    shutil.rmtree(other / "tokenizer")
    (other / "tokenizer").mkdir()
    tokenizer.from_model(str(tmp_path / "vocab.txt")).save(other / "tokenizer")
    assert runs.call(*flags, f"{OBJECTIVE}.teacher={other}", f"--workdir={tmp_path / 'run'}") == 2
    assert "has another tokenizer than the corpus; set data.tokenizer.model=" in capsys.readouterr().err


def test_the_command_line_is_that_of_the_recipe():
    """Every method of the recipe is a configuration."""
    from configs.finetune import distill

    for method in distill.METHODS:
        objective = distill.get_config(f"{method}-smoke").tasks.classify.objective
        assert objective.kind == "replacing" if method == "theseus" else objective.losses


def test_a_regression_has_the_losses_of_its_method_on_numbers():
    from configs.finetune import distill

    for method, (own_factor, losses) in distill.METHODS.items():
        objective = distill.get_config(f"{method}-regression").tasks.classify.objective
        assert objective.objective.kind == "regression"
        if method == "theseus":
            continue
        assert objective.own_factor == own_factor and set(objective.losses) == set(losses)
        soft = [loss for loss in objective.losses.values() if loss.kind == "logits"]
        assert all(loss.compare == "mse" and "temperature" not in loss for loss in soft)


@pytest.mark.slow
def test_layers_of_a_student_replace_those_of_its_teacher(files, tmp_path, monkeypatch):
    monkeypatch.chdir(files[2].parent)
    inner = "{'kind': 'classification'}"
    replacing = [f"{OBJECTIVE}={{'kind': 'replacing', 'objective': {inner}, 'teacher': '{files[0]}', 'steps': 10}}"]
    replacing += ["--config.tasks.good.examples.unlabeled=", f"--workdir={tmp_path / 'run'}"]
    assert runs.call(*files[1], *replacing) == 0
    losses = [
        record["train/classification_loss"]
        for record in runs.records(tmp_path / "run" / "metrics.jsonl")
        if "train/classification_loss" in record
    ]
    assert sum(losses[-5:]) < sum(losses[:5])
    shutil.copytree(tmp_path / "run" / "export", tmp_path / "alone")
    assert export.read(tmp_path / "alone").encoder.layers == 1
    figures = rescore.run(str(tmp_path / "alone"), corpus=str(files[2]))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert figures["eval"]["accuracy"] == pytest.approx(summary["eval"]["accuracy"])
