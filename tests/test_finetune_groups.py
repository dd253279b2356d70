"""Sentence embeddings and multiple choice from the command line, by their recipes made small."""

import json

import numpy as np
import pytest

import bertjax
from bertjax.runtime.errors import UserError
from tests import labeled_files, runs
from tests.test_finetune_tokens import course, finetune

pytestmark = pytest.mark.slow


def pair_columns(label: str) -> list[str]:
    columns = {"text": "one", "pair": "two", "label": label}
    return [f"--config.tasks.embeddings.examples.{field}={column}" for field, column in columns.items()]


def files_of(make, folder):
    return make(folder / "train.jsonl", 160), make(folder / "dev.jsonl", 48, seed=1)


@pytest.mark.parametrize(
    "variant, label, epochs, metric, least",
    [("STS-B", "score", 4, "spearman", 0.8), ("NLI", "label", 5, "accuracy", 0.9)],
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


def test_pairs_find_each_other(tmp_path):
    files, run = files_of(labeled_files.repeated, tmp_path), tmp_path / "run"
    more = [*pair_columns(""), "--config.stages.0.epochs=6"]
    assert finetune("embeddings.py:pairs-smoke", "embeddings", *files, run, *more) == 0
    scores = course(run, "eval/heldout/accuracy")
    losses = course(run, "train/embedding_loss")
    assert np.mean(losses[-3:]) < losses[0] / 2 and scores[-1] > 0.7
    predictions = runs.records(run / "predictions" / "heldout.jsonl")
    assert len(predictions) == 48 and predictions[0].keys() == {"one", "two", "cosine"}


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
    with pytest.raises(UserError, match="was not fine-tuned to predict something for each record"):
        bertjax.predictor(run / "export").predict([{"context": "abc", "choices": ["ada", "gabia", "abc"]}])
