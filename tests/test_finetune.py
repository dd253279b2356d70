"""Fine-tuning from the command line: it learns, resumes, predicts, and refuses bad input."""

import dataclasses
import json
import os
import shutil

import pytest
from etils import epath
from safetensors.numpy import load_file

from bertjax.cli import evaluate
from bertjax.config.opening import SavedModel
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError
from bertjax.training.results import rescore
from bertjax.training.results.scores import read_scores
from tests import labeled_files, runs

pytestmark = pytest.mark.usefixtures("shared_programs")

CONFIG = """
def get_config():
    return {
        "model": {"preset": "init_from"},
        "tasks": {"good": {"objective": {"kind": "classification"}, "examples": {"kind": "labeled_text"}}},
        "optimizer": {"learning_rate": 3e-3, "warmup_share": 0.1},
        "stages": [{"epochs": 6.0, "seq_len": 32, "examples": 16}],
        "eval": {"every": 0, "rows": 0, "samples": 0},
        "runtime": {"log_every": 1, "save_every": 10, "keep_best": 1},
    }
"""


@pytest.fixture(scope="module")
def finetune(undisturbed, tmp_path_factory):
    """The command line of a fine-tuning, without its workdir."""
    folder = tmp_path_factory.mktemp("finetune")
    (folder / "good.py").write_text(CONFIG)
    train, dev = labeled_files.write(folder)
    examples = "--config.tasks.good.examples"
    return [
        f"--config={folder / 'good.py'}",
        f"--config.init_from={undisturbed / 'export'}",
        f"{examples}.train={train}",
        f"{examples}.heldout={dev}",
    ]


@pytest.fixture(scope="module")
def finished(finetune, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished") / "run"
    assert runs.call(*finetune, f"--workdir={workdir}") == 0
    return workdir


def test_it_learns_and_writes_predictions(finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["eval"]["accuracy"] > summary["baseline"]["majority_accuracy"] + 0.2
    predictions = runs.records(finished / "predictions" / "heldout.jsonl")
    assert len(predictions) == 40
    assert "weighted avg" in (finished / "predictions" / "heldout-classes.txt").read_text()
    assert (finished / "predictions" / "heldout-confusion.csv").read_text().startswith("true class,no,yes\n")
    assert (finished / "predictions" / "heldout-confusion.png").stat().st_size > 1000
    right = sum(record["prediction"] == record["label"] for record in predictions)
    assert right / 40 == pytest.approx(summary["eval"]["accuracy"])
    scores = read_scores(epath.Path(finished / "scores.npz"))["accuracy"]
    assert len(scores.ids) == 40 and scores.sums[:, 0].sum() == right, "one sentence each"
    assert sorted(record["sentence"] for record in predictions) == sorted(
        record["sentence"] for record in labeled_files.sentences(40, seed=1)
    )


def test_evaluate_prints_the_scores_of_each_class(finished, capsys):
    summary = json.loads((finished / "summary.json").read_text())
    assert command_line.exit_code_of(lambda: evaluate.main([str(finished), "--per-class", "--platform=cpu"])) == 0
    assert "heldout: " in (table := capsys.readouterr().out) and "macro avg" in table
    scores = rescore.run(str(finished), per_class=True)["classes"]["heldout"]
    assert scores.keys() == {"no", "yes", "macro avg", "weighted avg"}
    assert scores["yes"]["f1"] == pytest.approx(summary["eval"]["f1"])


def test_settings_that_depend_on_the_data_are_resolved(finished):
    config = json.loads((finished / "config.json").read_text())["config"]
    assert config["tasks"]["good"]["objective"]["classes"] == ["no", "yes"]
    (stage,) = config["stages"]
    assert 2 <= stage["batch"] < 16 and config["optimizer"]["warmup_steps"] == stage["steps"] // 10
    metrics = runs.records(finished / "metrics.jsonl")
    evaluated = [record["step"] for record in metrics if "eval/heldout/accuracy" in record]
    assert len(evaluated) == 6 and evaluated[-1] == stage["steps"]
    rows = metrics[-1]["rows"]
    assert abs(160 * 6 / stage["steps"] - 16) < 3 and rows == stage["steps"] * stage["batch"]
    assert config["model"]["width"] == 32, "the width of the initial model"


def test_stopped_and_resumed_is_equal_bit_for_bit(finetune, finished, tmp_path):
    steps = json.loads((finished / "config.json").read_text())["config"]["stages"][0]["steps"]
    stopped = runs.train_here(finetune, tmp_path, lambda step: True if step == steps // 2 else None)
    assert stopped.step == steps // 2 and not stopped.finished
    assert runs.call(*finetune, f"--workdir={tmp_path}") == 0
    assert runs.weights(tmp_path) == runs.weights(finished)


def test_the_best_checkpoint_is_that_of_the_highest_accuracy(finished):
    metrics = runs.records(finished / "metrics.jsonl")
    accuracies = {r["step"]: r["eval/heldout/accuracy"] for r in metrics if "eval/heldout/accuracy" in r}
    kept = {int(path.name) for path in (finished / "checkpoints").iterdir() if path.name.isdecimal()}
    assert any(accuracies[step] == max(accuracies.values()) for step in kept & accuracies.keys())


@pytest.mark.slow
def test_the_encoder_is_that_of_the_source_before_the_first_step(finetune, undisturbed, tmp_path):
    still = ["--config.optimizer.learning_rate=1e-12", "--config.stages.0.epochs=0.2"]
    assert runs.call(*finetune, *still, f"--workdir={tmp_path}") == 0
    before, after = (load_file(root / "export" / "model.safetensors") for root in (undisturbed, tmp_path))
    for path, values in before.items():
        if path.startswith("encoder/"):
            assert abs(after[path] - values).max() < 1e-8
    assert after["heads/classification/kernel"].shape == (32, 2)


@pytest.mark.parametrize(
    "more, complaint",
    [
        (
            ["--config.init_from="],
            "model.preset=init_from needs a model to copy the architecture from; add --config.init_from=EXPORT",
        ),
        (["--config.init_from=nowhere"], "'nowhere' does not exist; name an export folder (bertjax convert makes"),
        (["--config.tasks.good.examples.label=stars"], "has no column 'stars'; it has 'sentence'"),
        (
            ["--config.tasks.good.examples.heldout=no.tsv"],
            "no.tsv cannot be read: No such file or directory; check the path and your rights, or hold out a share of",
        ),
        (["--config.tasks.good.examples.heldout="], "examples.train or examples.heldout is empty"),
        (
            ["--config.tasks.good.examples.further_heldout.train=dev.jsonl"],
            "examples.further_heldout has the name 'train'; use letters, digits, - and _, and not train or heldout",
        ),
        (["--config.tasks.good.examples.further_heldout.more=nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["--config.tasks.good.examples.limit=-1"], "examples.limit=-1 must not be negative"),
        (["--config.tasks.good.objective.metric=fame"], "objective.metric='fame' is unknown; choose one of accuracy"),
        (["--config.stages.0.seq_len=64"], "stages.0.seq_len=64 exceeds model.max_positions=32"),
        (["--config.tasks.good.objective.kind=regression"], "has the label 'yes', which is not a number"),
    ],
)
def test_bad_input(finetune, tmp_path, capsys, more, complaint):
    assert runs.call(*finetune, *more, f"--workdir={tmp_path}") == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and complaint in output, output


def test_the_model_card_names_the_training_file(finished):
    card = (finished / "export" / "hf" / "README.md").read_text()
    assert "| training file | `train.jsonl` |\n| fine-tuned from | `export` |\n| objective | classification" in card
    assert "| corpus |" not in card and "| tokenizer |" not in card


@pytest.mark.slow
def test_further_heldout_files_are_scored_by_the_same_model(finetune, finished, tmp_path):
    """As the two development sets of MNLI are."""
    train = finetune[2].partition("=")[2]
    further = [f"--config.tasks.good.examples.further_heldout.seen={train}", f"--workdir={tmp_path}"]
    assert runs.call(*finetune, *further) == 0
    assert runs.weights(tmp_path) == runs.weights(finished), "they have no effect on the training"
    summary, without = (json.loads((root / "summary.json").read_text()) for root in (tmp_path, finished))
    own = {name: value for name, value in summary["eval"].items() if not name.startswith("seen/")}
    assert own == without["eval"] and summary["eval"].keys() - own == {f"seen/{name}" for name in own}
    assert 0.5 < summary["baseline"]["seen/majority_accuracy"] < 1
    seen = runs.records(tmp_path / "predictions" / "seen.jsonl")
    assert len(seen) == 160 and len(runs.records(tmp_path / "predictions" / "heldout.jsonl")) == 40
    right = sum(record["prediction"] == record["label"] for record in seen) / 160
    metrics = runs.records(tmp_path / "metrics.jsonl")
    assert summary["eval"]["seen/accuracy"] == pytest.approx(right) == metrics[-1]["eval/seen/accuracy"]
    assert metrics[-1]["eval/heldout/accuracy"] == summary["eval"]["accuracy"]
    assert runs.score_export(tmp_path)["eval"] == pytest.approx(summary["eval"], rel=1e-5)


@pytest.mark.slow
def test_any_number_of_devices_trains_on_the_same_batches(finetune, finished, tmp_path):
    """The rows of a batch follow from the file, so devices need not divide them."""
    batch = json.loads((finished / "config.json").read_text())["config"]["stages"][0]["batch"]
    devices = next(count for count in (3, 4) if batch % count)
    xla = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    done = runs.finish(runs.start(*finetune, f"--workdir={tmp_path}", XLA_FLAGS=xla))
    assert done.returncode == 0 and "of padding, for" in done.stdout, done.stderr
    one, several = (runs.records(root / "metrics.jsonl") for root in (finished, tmp_path))
    assert [(line["rows"], line["tokens"]) for line in several] == [(line["rows"], line["tokens"]) for line in one]
    losses = [[line["train/classification_loss"] for line in lines[:8]] for lines in (one, several)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.slow
def test_seeds(finetune, finished, tmp_path, capsys):
    assert runs.call(*finetune, f"--workdir={tmp_path}", "--seeds=2") == 0
    output = capsys.readouterr().out
    assert "held out, 2 seeds" in output and f"figures   {tmp_path}/seeds.json" in output
    spread = json.loads((tmp_path / "seeds.json").read_text())["metrics"]["accuracy"]
    alone = [json.loads((tmp_path / f"seed={seed}" / "summary.json").read_text()) for seed in (0, 1)]
    assert spread["values"] == [summary["eval"]["accuracy"] for summary in alone]
    assert runs.weights(tmp_path / "seed=0") == runs.weights(finished) != runs.weights(tmp_path / "seed=1")
    assert runs.call(*finetune, f"--workdir={tmp_path}", "--seeds=2") == 0
    assert json.loads((tmp_path / "seeds.json").read_text())["metrics"]["accuracy"] == spread
    starts = [len(runs.records(tmp_path / f"seed={seed}" / "starts.jsonl")) for seed in (0, 1)]
    assert starts == [1, 1], "seeds that have finished are not started again"
    assert runs.call(*finetune, f"--workdir={tmp_path}", "--seeds=-1") == 2


def test_the_export_is_scored_as_the_run_scored_it(finished, tmp_path, capsys, monkeypatch):
    figures = json.loads((finished / "summary.json").read_text())
    scores = runs.score_export(finished)
    assert scores["eval"] == pytest.approx(figures["eval"], rel=1e-5) and scores["baseline"] == figures["baseline"]
    with pytest.raises(
        UserError, match="is an export, which opens no data but .*; add --corpus=CORPUS, or name the run"
    ):
        rescore.run(str(finished / "export"))
    other = labeled_files.write(tmp_path, heldout=10)[1]
    limited = SavedModel(finished).config
    limited = dataclasses.replace(limited, eval=dataclasses.replace(limited.eval, rows=1))
    scored = rescore.score(SavedModel(finished), limited, str(other))["scored"]["good"]
    assert scored["records"] == 10 and scored["rows"] == scored["of_rows"] > 1, (
        "eval.rows of the run has no effect on a named file"
    )
    scored = rescore.score(SavedModel(finished), limited)["scored"]["good"]
    assert scored["rows"] == 1 < scored["of_rows"] and 0 < scored["records"] < 10 * scored["of_rows"]
    assert rescore.run(str(finished / "export"), str(other))["eval"]["accuracy"] in [n / 10 for n in range(11)]
    shutil.copytree(finished / "export", tmp_path / "machine" / "shipped")
    monkeypatch.chdir(tmp_path / "machine")  # where the training file is not
    capsys.readouterr()
    shipped = rescore.run("shipped", str(other))
    assert "the training file of an export is not there: the baselines are those of" in capsys.readouterr().err
    assert shipped["eval"] == rescore.run(str(finished / "export"), str(other))["eval"]
    labels = [json.loads(line)["label"] for line in other.read_text().splitlines()]
    majority = max(map(labels.count, labels)) / len(labels)
    assert shipped["baseline"]["majority_accuracy"] == pytest.approx(majority)
    with pytest.raises(UserError, match="^nowhere.tsv cannot be read: .*; check the path and your rights$"):
        rescore.run("shipped", "nowhere.tsv")
    glue = tmp_path / "glue"
    (glue / "RTE").mkdir(parents=True)
    (glue / "RTE" / "summary.json").write_text((finished / "summary.json").read_text())
    capsys.readouterr()
    assert command_line.exit_code_of(lambda: evaluate.main([str(glue), "--suite=glue", "--json"])) == 0
    assert json.loads(capsys.readouterr().out)["RTE"]["mean"] == pytest.approx(100 * figures["eval"]["accuracy"])
