"""Importance and pruning, on a model in which some heads do nothing."""

import copy
import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bertjax.analysis import series
from bertjax.analysis.ablation import ablation_of
from bertjax.analysis.material import Labeled
from bertjax.analysis.parts.importance import ImportanceOfParts
from bertjax.models import importance as files

# 5 of 12 heads: a share of 0.4, rounded.
IDLE = [(0, 1), (0, 3), (1, 0), (2, 1), (2, 2)]


@pytest.fixture(scope="module")
def few(models) -> Labeled:
    return Labeled("toy", examples=12, path=str(models["labeled"]))


@pytest.fixture(scope="module")
def subject(finetuned):
    """The fine-tuned model with heads whose output weights are 0, and half of the neurons, too."""
    params = copy.deepcopy(jax.device_get(finetuned.params))
    layers = params["encoder"]["layers"]
    for layer, head in IDLE:
        layers["attention"]["output"]["kernel"][layer, head * 8 : (head + 1) * 8] = 0.0
    layers["output"]["kernel"][:, ::2] = 0.0
    return dataclasses.replace(finetuned, export=finetuned.export._replace(params=params))


@pytest.fixture(scope="module")
def result(subject, few):
    return ImportanceOfParts().run([subject], [few])


def test_what_does_nothing_is_pruned_first(result):
    """The scores stay as they are until something that does something is pruned."""
    curves = result.numbers["finetuned"]["toy"]
    assert curves["shares"] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    for curve, share in (("heads_by_importance", 4), ("neurons_by_importance", 5)):
        losses = np.array(curves[curve]["loss"])
        assert (losses[: share + 1] == losses[0]).all() and (losses[share + 1 :] != losses[0]).all()
        assert curves[curve]["kept_up_to"] >= share / 10
        assert curves[curve]["accuracy"][: share + 1] == [curves[curve]["accuracy"][0]] * (share + 1)
    assert curves["heads_by_importance"]["loss"][-1] == curves["heads_by_difference"]["loss"][-1]


def test_single_differences_prune_what_harms_least_first(result, subject, few):
    """The first tenth is the head whose removal raises the accuracy most, then lowers the loss most."""
    ablation = ablation_of(subject, few)
    scores = ablation.without_each_head()
    best = min(scores, key=lambda s: (-s.metric, s.loss))
    curve = result.numbers["finetuned"]["toy"]["heads_by_difference"]
    assert curve["loss"][1] == best.loss and curve["accuracy"][1] == best.metric


def test_arrays_and_file(result, subject):
    arrays = result.arrays
    assert arrays["finetuned/toy/heads"].shape == (3, 4) and arrays["finetuned/toy/neurons"].shape == (3, 48)
    assert sorted(map(tuple, np.argwhere(arrays["finetuned/toy/heads"] == 0))) == IDLE
    assert arrays["finetuned/toy/neurons_by_importance_accuracy"].shape == (11,)
    assert set(result.files) == {"importance.json"}


def test_curves_over_shares_are_not_taken_for_layers(result):
    subject = SimpleNamespace(label="finetuned", encoder=SimpleNamespace(layers=10, heads=4))
    values = series.values_of(result, subject)
    assert all(array.ndim == 0 for array in values.values())
    assert ("toy", "neurons_by_importance", "kept_up_to") in values


def test_the_file_is_read(result, subject, tmp_path):
    (tmp_path / "importance.json").write_bytes(result.files["importance.json"])
    importance = files.read(tmp_path / "importance.json", subject.encoder)
    np.testing.assert_allclose(importance.heads, result.arrays["finetuned/toy/heads"], rtol=1e-5)
    np.testing.assert_allclose(importance.neurons, result.arrays["finetuned/toy/neurons"], rtol=1e-5)
    assert (importance.model, importance.material, importance.examples) == ("finetuned", "toy", 12)
    assert importance.objective == "Classification"


def test_figures_and_text(result):
    assert [figure.name for figure in result.figures] == ["heads-1", "pruned-heads-1", "pruned-neurons-1"]
    for figure in result.figures:
        assert figure.draw().axes and figure.caption and figure.alternative
    assert "finetuned on toy (12 examples): heads, by importance" in result.text


@pytest.mark.slow
def test_a_model_without_a_metric_and_several_files(pretrained, subject, few, texts):
    """Masked LM has the loss only."""
    material = dataclasses.replace(texts, examples=4)
    result = ImportanceOfParts().run([pretrained, subject], [material, few])
    assert set(result.files) == {"importance-pretrained-texts.json", "importance-finetuned-toy.json"}
    curve = result.numbers["pretrained"]["texts"]["heads_by_difference"]
    assert set(curve) == {"loss", "kept_up_to"} and len(curve["loss"]) == 11
    assert [figure.name for figure in result.figures][3:] == ["heads-2", "pruned-heads-2", "pruned-neurons-2"]
