"""Several labeled tasks in one fine-tuning: a shared encoder, a head each, turns in proportion to their rows."""

import json

import pytest
from safetensors.numpy import load_file

import bertjax
from bertjax.cli import predict
from bertjax.config.opening import SavedModel
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError
from bertjax.training.results import rescore
from tests import labeled_files, runs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_programs")]

CONFIG = """
def get_config(variant=""):
    def task(kind, label):
        return {
            "objective": {"kind": kind},
            "examples": {"kind": "labeled_text", "train": "FOLDER/train.jsonl", "heldout": "FOLDER/dev.jsonl", **label},
            "weight": None,
        }

    tasks = {"good": task("classification", {}), "third": task("classification", {"label": "third", "limit": 80})}
    tasks["good"]["examples"]["further_heldout"] = {"seen": "FOLDER/train.jsonl"}
    if variant:
        tasks = {name: {**tasks[name], "weight": 1.0} for name in variant.split("+")}
    return {
        "model": {"preset": "init_from"},
        "tasks": tasks,
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 2, "schedule": {"kind": "inverse_sqrt"}},
        "stages": [{"epochs": 5.0, "seq_len": 32, "examples": 16}],
        "eval": {"every": 0, "rows": 0, "samples": 0},
        "runtime": {"log_every": 1, "save_every": 20, "keep_best": 1},
    }
"""


@pytest.fixture(scope="module")
def finetune(undisturbed, tmp_path_factory):
    """The command line of a fine-tuning on two tasks, with two and with three classes, without its workdir."""
    folder = tmp_path_factory.mktemp("several")
    (folder / "several.py").write_text(CONFIG.replace("FOLDER", str(folder)))
    for path in labeled_files.write(folder):
        records = [record | {"third": _third(record)} for record in runs.records(path)]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [f"--config={folder / 'several.py'}", f"--config.init_from={undisturbed / 'export'}"]


def _third(record: dict) -> str:
    return "a" if record["label"] == "yes" else "c" if "abc" in record["sentence"] else "b"


@pytest.fixture(scope="module")
def finished(finetune, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished") / "run"
    assert runs.call(*finetune, f"--workdir={workdir}") == 0
    return workdir


def test_every_task_is_learned_with_a_head_of_its_own(finished):
    summary = json.loads((finished / "summary.json").read_text())
    scores, baselines = summary["eval"], summary["baseline"]
    for heldout in ("good", "third", "good/seen"):
        assert scores[f"{heldout}/accuracy"] > baselines[f"{heldout}/majority_accuracy"] + 0.1
    params = load_file(finished / "export" / "model.safetensors")
    assert params["heads/good/classification/kernel"].shape == (32, 2)
    assert params["heads/third/classification/kernel"].shape == (32, 3)
    assert sum(path.startswith("heads/") for path in params) == 4
    predictions = runs.records(finished / "predictions" / "heldout.jsonl")
    assert [record["task"] for record in predictions] == ["good"] * 40 + ["third"] * 40
    right = sum(record["prediction"] == record["label"] for record in predictions[:40]) / 40
    assert right == pytest.approx(scores["good/accuracy"])
    assert len(runs.records(finished / "predictions" / "good-seen.jsonl")) == 160


def test_stopped_and_resumed_is_equal_bit_for_bit(finetune, finished, tmp_path):
    runs.train_here(finetune, tmp_path, lambda step: True if step == 25 else None)
    assert runs.call(*finetune, f"--workdir={tmp_path}") == 0
    assert runs.weights(tmp_path) == runs.weights(finished)


def test_predict_has_one_task(finished, tmp_path, capsys):
    with pytest.raises(UserError, match="fine-tuned on good, third; choose one with --task or"):
        bertjax.predictor(finished / "export").predict(["good abc"])
    (tmp_path / "texts.txt").write_text("good abc\njade abc\n")
    answers = {}
    for task in ("good", "third"):
        flags = [str(finished), f"--task={task}", f"--file={tmp_path / 'texts.txt'}", f"--out={tmp_path / task}"]
        assert command_line.exit_code_of(lambda flags=flags: predict.main([*flags, "--platform=cpu"])) == 0
        answers[task] = [record["prediction"] for record in runs.records(tmp_path / task)]
        assert answers[task] == [r["prediction"] for r in predictions(finished / "export", task)]
    assert answers["good"] == ["yes", "no"] and answers["third"][0] == "a"
    capsys.readouterr()
    assert command_line.exit_code_of(lambda: predict.main([str(finished), "--task=nope", "--platform=cpu"])) == 2
    error = capsys.readouterr().err
    assert error == "error: --task=nope is not a task of the model; choose one of good, third\n"
    assert bertjax.predictor(finished / "export").embed(["abc"]).shape == (1, 32), "the encoder has no task"


def predictions(export, task: str) -> list[dict]:
    return bertjax.predictor(export, task=task).predict(["good abc", "jade abc"])


def test_evaluate_scores_all_tasks_or_one(finished):
    scores = json.loads((finished / "summary.json").read_text())["eval"]
    assert runs.score_export(finished)["eval"] == pytest.approx(scores, abs=1e-5)
    whole, one = rescore.run(str(finished)), rescore.run(str(finished), task="third")
    assert one["eval"]["accuracy"] == pytest.approx(scores["third/accuracy"])
    assert one["baseline"]["majority_accuracy"] == whole["baseline"]["third/majority_accuracy"]
    file = SavedModel(finished).config.task.examples.train
    on_file = rescore.run(str(finished / "export"), file, task="good")
    assert on_file["eval"]["accuracy"] == pytest.approx(scores["good/seen/accuracy"])
    with pytest.raises(UserError, match="is one file, and the model has the tasks good, third; add --task"):
        rescore.run(str(finished), file)


@pytest.mark.parametrize(
    "more, complaint",
    [
        (["--config.tasks.mlm.objective.kind=mlm"], "a mixture is trained on one corpus or on labeled files"),
        (["--config.tasks.third.weight=0"], "weight=0.0 must be above 0"),
        (["--config.tasks.third.examples.train=nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["--config.tasks.third.examples.label=none"], "has no column 'none'"),
        (["--config.stages.0.tasks=['good']"], "tasks.third is in no stage"),
    ],
)
def test_bad_input(finetune, tmp_path, capsys, more, complaint):
    assert runs.call(*finetune, *more, f"--workdir={tmp_path}") == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and complaint in output, output
