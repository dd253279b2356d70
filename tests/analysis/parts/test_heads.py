"""Importance: of heads and layers, of those that are disabled, and curvature."""

import copy
import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.flatten_util import ravel_pytree

from bertjax.analysis.ablation import ablation_of
from bertjax.analysis.material import Labeled, texts_material
from bertjax.analysis.parts import parts_of, training
from bertjax.analysis.parts.curvature import Curvature, bits_of, is_kernel_of_layers, subsets
from bertjax.analysis.parts.heads import Disabling, ImportanceOfParts
from bertjax.analysis.subject import Subject
from tests.analysis.conftest import MODEL, make

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


@pytest.mark.slow
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


def test_arrays_and_file(result, subject):
    arrays = result.arrays
    assert arrays["finetuned/toy/heads"].shape == (3, 4) and arrays["finetuned/toy/neurons"].shape == (3, 48)
    assert sorted(map(tuple, np.argwhere(arrays["finetuned/toy/heads"] == 0))) == IDLE
    assert arrays["finetuned/toy/neurons_by_importance_accuracy"].shape == (11,)
    assert set(result.files) == {"importance.json"}


@pytest.fixture(scope="module")
def few_of_disabling(models, tmp_path_factory) -> Labeled:
    """The labeled file twice: enough rows for p-values."""
    header, *rows = models["labeled"].read_text().splitlines()
    path = tmp_path_factory.mktemp("twice") / "twice.tsv"
    path.write_text("\n".join([header, *rows, *rows]) + "\n")
    return Labeled("toy", path=str(path))


@pytest.fixture(scope="module")
def result_of_disabling(finetuned, few_of_disabling, texts):
    return Disabling().run([finetuned], [texts, few_of_disabling])


def test_changes_by_head(result_of_disabling, finetuned, few_of_disabling):
    ablation = ablation_of(finetuned, few_of_disabling)
    arrays = result_of_disabling.arrays
    assert arrays.keys() == {
        f"finetuned/toy/{part}_{number}{p}"
        for part in ("one_off", "one_kept")
        for number in ("loss", "accuracy")
        for p in ("", "_p")
    }
    off, alone = np.ones((3, 4)), np.ones((3, 4))
    off[1, 2], alone[1, [0, 1, 3]] = 0.0, 0.0
    for part, mask in (("one_off", off), ("one_kept", alone)):
        masked, unmasked = ablation.scores({"head_mask": mask}), ablation.unmasked
        assert arrays[f"finetuned/toy/{part}_loss"][1, 2] == pytest.approx(masked.loss - unmasked.loss, abs=1e-9)
        assert arrays[f"finetuned/toy/{part}_accuracy"][1, 2] == pytest.approx(masked.metric - unmasked.metric)


def test_numbers(result_of_disabling):
    numbers, arrays = result_of_disabling.numbers["finetuned"]["toy"], result_of_disabling.arrays
    assert numbers["metric"] == "accuracy" and numbers["examples"] == 80 and numbers["heads"] == 12
    change_LH, p_LH = arrays["finetuned/toy/one_off_loss"], arrays["finetuned/toy/one_off_loss_p"]
    loss = numbers["one_off"]["loss"]
    assert loss["significant"] == (p_LH < 0.01).sum()
    assert loss["worse"] == ((p_LH < 0.01) & (change_LH > 0)).sum()
    worst = loss["most_harmful"]
    assert worst["change"] == change_LH.max() == change_LH[worst["layer"] - 1, worst["head"] - 1]
    assert worst["interval"][0] <= worst["change"] <= worst["interval"][1]
    kept_LH = arrays["finetuned/toy/one_kept_accuracy"]
    best = numbers["one_kept"]["accuracy"]["least_harmful_by_layer"]
    assert [cell["change"] for cell in best] == kept_LH.max(axis=1).tolist()
    assert [cell["layer"] for cell in best] == [1, 2, 3]


def test_figures_and_text(result_of_disabling):
    assert [figure.name for figure in result_of_disabling.figures] == ["scores", "one-kept", "one-off-1"]
    for figure in result_of_disabling.figures:
        assert figure.drawn.axes and figure.caption and figure.alternative
    assert "of 12 heads change it at p < 0.01 (0.1 are expected by chance)" in result_of_disabling.text


def test_few_rows_have_no_p_values(pretrained, finetuned, models):
    """All resamples of a single row are the same: any change would be significant."""
    material = texts_material(["The king is here."])
    result_of_disabling = Disabling().run([pretrained], [material])
    numbers = result_of_disabling.numbers["pretrained"]["texts"]
    assert numbers["one_off"]["loss"]["significant"] == 0 and np.isnan(numbers["one_off"]["loss"]["most_harmful"]["p"])
    assert np.isnan(result_of_disabling.arrays["pretrained/texts/one_off_loss_p"]).all()
    assert np.isfinite(result_of_disabling.arrays["pretrained/texts/one_off_loss"]).all()
    assert (
        "The number of rows, 1, is too small for p-values." in result_of_disabling.text
        and "p =" not in result_of_disabling.figures[0].caption
    )


SHAPE = MODEL | {"layers": 2, "width": 8, "heads": 2, "feedforward": 8}


@pytest.fixture(scope="module")
def small(finetuned, tokens) -> Subject:
    """The fine-tuned model with 384 weights in the kernels of a layer, so that its Hessian can be formed."""
    return Subject("small", make(finetuned.export.settings | {"model": SHAPE}, tokens))


@pytest.fixture(scope="module")
def result_of_curvature(small, labeled):
    return Curvature().run([small], [labeled])


def dense(subject, encoded, batch) -> np.ndarray:
    """Return the Hessian of the mean loss of a batch with respect to the kernels of each layer, as matrices."""
    objective, flat = encoded.objective, flatten_dict(subject.params, sep="/")
    model, layers = objective.model(subject.encoder), range(subject.encoder.layers)
    kernels = [{path: leaf[layer] for path, leaf in flat.items() if is_kernel_of_layers(path)} for layer in layers]
    _, restore = ravel_pytree(kernels[0])

    def loss(vector, layer):
        kernels = {path: flat[path].at[layer].set(leaf) for path, leaf in restore(vector).items()}
        params = unflatten_dict({path: kernels.get(path, leaf) for path, leaf in flat.items()}, sep="/")
        sums, _ = objective.terms(model, params, None, batch, jax.random.key(0), False)
        return sums["classification"] / objective.weights(batch)["classification"]

    flat, hessian = jax.tree.map(jax.numpy.asarray, flat), jax.jit(jax.hessian(loss))
    return np.stack([hessian(ravel_pytree(kernels[layer])[0], layer) for layer in layers]).astype(np.float64)


@pytest.mark.slow
def test_eigenvalues_are_those_of_the_dense_hessian(small, labeled, result_of_curvature):
    encoded = labeled.encoded(small)
    batches = list(subsets(encoded))
    values_LS = result_of_curvature.arrays["small/toy/eigenvalues"]
    assert values_LS.shape == (2, len(batches))
    for layer, hessian in enumerate(dense(small, encoded, batches[0])):
        assert hessian.shape == (384, 384)
        values = np.linalg.eigvalsh((hessian + hessian.T) / 2)
        np.testing.assert_allclose(values_LS[layer, 0], values[np.abs(values).argmax()], rtol=1e-2)


def test_parts_of_the_data_have_no_example_in_common(small, labeled):
    ids = [batch["example_ids_BN"] for batch in subsets(labeled.encoded(small))]
    examples = np.concatenate([part[part >= 0] for part in ids])
    assert len(ids) > 1 and len(set(examples.tolist())) == len(examples)


@pytest.mark.slow
def test_the_more_sensitive_half_has_more_bits(result_of_curvature):
    assert bits_of(np.array([0.1, 3.0, 0.2])) == [2, 4, 4] and bits_of(np.array([1.0, 1.0])) == [4, 2]
    numbers, values_LS = (
        result_of_curvature.numbers["small"]["toy"],
        result_of_curvature.arrays["small/toy/eigenvalues"],
    )
    expected = np.abs(values_LS.mean(axis=1)) + values_LS.std(axis=1)
    np.testing.assert_allclose(numbers["sensitivity"], expected)
    assert numbers["layer_bits"][int(np.argmax(expected))] == 4
    flags = f"--config.quantization.layer_bits={numbers['layer_bits']}".replace(" ", "")
    assert flags in result_of_curvature.text and numbers["examples"] <= 40
    of_parts = SimpleNamespace(label="small", encoder=SimpleNamespace(layers=2, heads=values_LS.shape[1]))
    assert ("toy", "eigenvalues") not in training.values_of(result_of_curvature, of_parts), (
        "parts of the data are not heads"
    )
    [figure] = result_of_curvature.figures
    assert figure.drawn.axes and "Most sensitive" in figure.caption


def test_it_runs_only_if_it_is_named(small, labeled, tokens, finetuned):
    assert "curvature" not in [part.name for part in parts_of(())]
    assert [part.name for part in parts_of(["curvature"])] == ["curvature"]
    shared = make(finetuned.export.settings | {"model": SHAPE | {"sharing": "all"}}, tokens)
    assert "shares parameters" in Curvature().missing(Subject("shared", shared), [labeled])
    assert Curvature().missing(small, [labeled]) == ""
