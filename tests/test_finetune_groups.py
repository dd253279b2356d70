"""Sentence embeddings and multiple choice from the command line, by their recipes made small."""

import json

import numpy as np
import pytest

import bertjax
from bertjax.cli import evaluate
from bertjax.config.config_file import load
from bertjax.runtime.errors import UserError
from tests import labeled_files, runs
from tests.test_finetune_tokens import CONFIGS, course, finetune


def pair_columns(label: str) -> list[str]:
    columns = {"text": "one", "pair": "two", "label": label}
    return [f"--config.tasks.embeddings.examples.{field}={column}" for field, column in columns.items()]


def files_of(make, folder):
    return make(folder / "train.jsonl", 160), make(folder / "dev.jsonl", 48, seed=1)


@pytest.mark.parametrize(
    "variant, label, epochs, metric, least",
    [("STS-B", "score", 4, "spearman", 0.8), pytest.param("NLI", "label", 5, "accuracy", 0.9, marks=pytest.mark.slow)],
)
def test_similarity_is_learned(tmp_path, variant, label, epochs, metric, least):
    files, run = files_of(labeled_files.similar, tmp_path), tmp_path / "run"
    more = [*pair_columns(label), f"--config.stages.0.epochs={epochs}"]
    assert finetune(f"embeddings.py:{variant}-smoke", "embeddings", *files, run, *more) == 0
    figures = json.loads((run / "summary.json").read_text())
    losses = course(run, "train/embedding_loss")
    assert np.mean(losses[-5:]) < losses[0] / 2 and figures["eval"][metric] > least
    predictions = runs.records(run / "predictions" / "heldout.jsonl")
    assert len(predictions) == 48
    alike = np.array([p["label"] == "same" if label == "label" else p["score"] > 0 for p in predictions])
    if variant == "NLI":
        right = np.array([p["prediction"] == p["label"] for p in predictions])
        assert right.mean() == pytest.approx(figures["eval"]["accuracy"])
        assert figures["baseline"]["majority_accuracy"] < 0.8
    else:
        cosines = np.array([p["cosine"] for p in predictions])
        assert cosines[alike].mean() > cosines[~alike].mean() + 0.5

    predictor = bertjax.predictor(run / "export")
    records = [{name: p[name] for name in ("one", "two")} for p in predictions[:5]]
    for p, before in zip(predictor.predict(records), predictions):
        assert p["cosine"] == pytest.approx(before["cosine"], abs=1e-4)
    u, v = (predictor.embed([record[name] for record in records], normalize=True) for name in ("one", "two"))
    np.testing.assert_allclose(np.sum(u * v, axis=1), [p["cosine"] for p in predictions[:5]], atol=1e-4)


@pytest.mark.slow
def test_pairs_find_each_other(tmp_path):
    files, run = files_of(labeled_files.repeated, tmp_path), tmp_path / "run"
    more = [*pair_columns(""), "--config.stages.0.epochs=6"]
    assert finetune("embeddings.py:pairs-smoke", "embeddings", *files, run, *more) == 0
    scores = course(run, "eval/heldout/accuracy")
    losses = course(run, "train/embedding_loss")
    assert np.mean(losses[-3:]) < losses[0] / 2 and scores[-1] > 0.7
    predictions = runs.records(run / "predictions" / "heldout.jsonl")
    assert len(predictions) == 48 and predictions[0].keys() == {"one", "two", "cosine"}


@pytest.mark.slow
def test_texts_alone_order_pairs_by_similarity(tmp_path):
    """SimCSE sees no pair: texts with the same person become more similar than texts with different ones."""
    texts, dev = tmp_path / "train.txt", labeled_files.similar(tmp_path / "dev.jsonl", 48, seed=1)
    records = runs.records(labeled_files.similar(tmp_path / "pairs.jsonl", 160))
    texts.write_text("".join(record["one"] + "\n" for record in records))
    run, dropout = tmp_path / "run", "--config.model.dropout=0.1"
    assert finetune("embeddings.py:simcse-smoke", "embeddings", texts, dev, run, *pair_columns("score"), dropout) == 0
    losses, scores = course(run, "train/embedding_loss"), course(run, "eval/heldout/spearman")
    assert np.mean(losses[-3:]) < losses[0] - 0.3 and len(scores) == 1
    predictions = runs.records(run / "predictions" / "heldout.jsonl")
    assert len(predictions) == 48 and predictions[0].keys() >= {"one", "two", "score", "cosine"}
    texts.unlink()  # as on another machine, to which the export was sent
    again = evaluate.run(str(run / "export"), str(dev))["eval"]
    assert again["spearman"] == pytest.approx(scores[-1], abs=1e-6)


@pytest.mark.slow
def test_choices_are_learned(tmp_path):
    """The rows of 48 tokens are longer than the position table, the examples are not."""
    files, run = files_of(labeled_files.choices, tmp_path), tmp_path / "run"
    longer = ["--config.stages.0.seq_len=48", "--config.tasks.choices.examples.max_tokens=16"]
    assert finetune("choices.py:smoke", "choices", *files, run, *longer, "--config.model.max_positions=16") == 0
    figures = json.loads((run / "summary.json").read_text())
    assert figures["eval"]["accuracy"] > 0.9 > figures["baseline"]["majority_accuracy"] + 0.3
    predictions = runs.records(run / "predictions" / "heldout.jsonl")
    right = [p["prediction"] == p["label"] for p in predictions]
    assert len(right) == 48 and np.mean(right) == pytest.approx(figures["eval"]["accuracy"])
    config = json.loads((run / "config.json").read_text())["config"]
    assert config["tasks"]["choices"]["objective"]["classes"] == ["0", "1", "2"]
    assert runs.score_export(run)["eval"] == pytest.approx(figures["eval"], rel=1e-6)
    with pytest.raises(UserError, match="was not fine-tuned for a task that predicts something for each record"):
        bertjax.predictor(run / "export").predict([{"context": "abc", "choices": ["ada", "gabia", "abc"]}])


@pytest.mark.slow
def test_exams_are_learned(tmp_path):
    files = (labeled_files.race(tmp_path / "train", 80), labeled_files.race(tmp_path / "dev", 24, seed=1))
    run = tmp_path / "run"
    assert finetune("choices.py:race-smoke", "choices", *files, run) == 0
    figures = json.loads((run / "summary.json").read_text())
    assert figures["eval"]["accuracy"] > 0.9 > figures["baseline"]["majority_accuracy"] + 0.3
    predictions = runs.records(run / "predictions" / "heldout.jsonl")
    assert len(predictions) == 48
    assert np.mean([p["prediction"] == p["answer"] for p in predictions]) == figures["eval"]["accuracy"]
    question = {"article": "abc cab", "question": "bid", "A": "cadiz", "B": "hebei", "C": "jed", "D": "gabia"}
    assert bertjax.predictor(run / "export").predict([question])[0]["prediction"] == 2


@pytest.mark.parametrize(
    "more, complaint",
    [
        (["--config.tasks.choices.examples.label=right"], "train.jsonl:1 has no field 'right', it has 'context'"),
        (["--config.stages.0.seq_len=12"], "a row of 12 tokens leaves 4 for each of 3 choices; raise stages.0.seq_len"),
        (["--config.tasks.choices.objective.kind=tagging"], "use examples.kind=tagged, or another objective"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, more, complaint):
    files = files_of(labeled_files.choices, tmp_path)
    assert finetune("choices.py:smoke", "choices", *files, tmp_path / "run", *more) == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and complaint in output, output


@pytest.mark.parametrize(
    "recipe, settings",
    [
        ("embeddings.py:NLI", (1.0, 256, 32, 2e-5)),
        ("embeddings.py:STS-B", (4.0, 256, 32, 2e-5)),
        ("embeddings.py:pairs", (3.0, 64, 1024, 5e-5)),
        ("embeddings.py:simcse", (1.0, 64, 128, 3e-5)),
        ("choices.py", (3.0, 512, 64, 2e-5)),
        ("choices.py:race", (4.0, 2048, 64, 1e-5)),
    ],
)
def test_the_settings_are_those_of_the_paper(recipe, settings):
    path, _, variant = recipe.partition(":")
    smoke = f"{path}:{'-'.join(filter(None, (variant, 'smoke')))}"
    config, small = (load(f"{CONFIGS / name}", ["model.preset=base"]) for name in (recipe, smoke))
    (stage,) = config.stages
    assert (stage.epochs, stage.seq_len, stage.examples, config.optimizer.learning_rate) == settings
    assert small.stages[0].epochs == stage.epochs and small.task.objective == config.task.objective
    assert f"--config=configs/finetune/{recipe} --config.init_from=" in (CONFIGS / path).read_text()
