"""Curvature: eigenvalues of a dense Hessian, disjoint parts of the data, and the bits that follow."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.flatten_util import ravel_pytree

from bertjax.analysis import series
from bertjax.analysis.material import texts_material
from bertjax.analysis.parts import parts_of
from bertjax.analysis.parts.curvature import Curvature, _eigenvalues, bits_of, is_kernel_of_layers, subsets
from bertjax.analysis.reduce import hide
from bertjax.analysis.subject import Subject
from bertjax.objectives.finetuning.classification import Classification
from tests.analysis.conftest import MODEL, make

SHAPE = MODEL | {"layers": 2, "width": 8, "heads": 2, "feedforward": 8}


@pytest.fixture(scope="module")
def small(finetuned, tokens) -> Subject:
    """The fine-tuned model with 384 weights in the kernels of a layer, so that its Hessian can be formed."""
    return Subject("small", make(finetuned.export.settings | {"model": SHAPE}, tokens))


@pytest.fixture(scope="module")
def result(small, labeled):
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


def test_eigenvalues_are_those_of_the_dense_hessian(small, labeled, result):
    encoded = labeled.encoded(small)
    batches = list(subsets(encoded))
    values_LS = result.arrays["small/toy/eigenvalues"]
    assert values_LS.shape == (2, len(batches))
    for layer, hessian in enumerate(dense(small, encoded, batches[0])):
        assert hessian.shape == (384, 384)
        values = np.linalg.eigvalsh((hessian + hessian.T) / 2)
        np.testing.assert_allclose(values_LS[layer, 0], values[np.abs(values).argmax()], rtol=1e-2)


@dataclasses.dataclass(frozen=True)
class Rising(Classification):
    """A classification with a loss weight that rises by 0.01 per step."""

    def loss_weights(self, terms, step):
        return {"classification": step / 100}


@pytest.mark.slow
def test_the_loss_is_weighted_as_at_the_last_step(small, labeled, result):
    rising = dataclasses.replace(labeled.encoded(small), objective=Rising(("bad", "good")))
    trained = dataclasses.replace(small, export=small.export._replace(numbers={"steps": 300}))
    values_LS, _ = _eigenvalues(trained, SimpleNamespace(name="toy", encoded=lambda subject: rising), hide)
    np.testing.assert_allclose(values_LS, 3.0 * result.arrays["small/toy/eigenvalues"], rtol=1e-2)


def test_parts_of_the_data_have_no_example_in_common(small, labeled):
    ids = [batch["example_ids_BN"] for batch in subsets(labeled.encoded(small))]
    examples = np.concatenate([part[part >= 0] for part in ids])
    assert len(ids) > 1 and len(set(examples.tolist())) == len(examples)


def test_parts_of_the_data_have_short_and_long_examples(pretrained):
    """Rows of long examples come first when they are packed."""
    texts = texts_material([" ".join(["the"] * 60)] * 40 + ["the"] * 400)
    for batch in subsets(texts.encoded(pretrained)):
        examples_B = (batch["example_ids_BN"] >= 0).sum(axis=1)
        assert np.any(examples_B == 1) and np.any(examples_B > 1)


def test_the_more_sensitive_half_has_more_bits(result):
    assert bits_of(np.array([0.1, 3.0, 0.2])) == [2, 4, 4] and bits_of(np.array([1.0, 1.0])) == [4, 2]
    numbers, values_LS = result.numbers["small"]["toy"], result.arrays["small/toy/eigenvalues"]
    expected = np.abs(values_LS.mean(axis=1)) + values_LS.std(axis=1)
    np.testing.assert_allclose(numbers["sensitivity"], expected)
    assert numbers["layer_bits"][int(np.argmax(expected))] == 4
    flags = f"--config.quantization.layer_bits={numbers['layer_bits']}".replace(" ", "")
    assert flags in result.text and numbers["examples"] <= 40
    of_parts = SimpleNamespace(label="small", encoder=SimpleNamespace(layers=2, heads=values_LS.shape[1]))
    assert ("toy", "eigenvalues") not in series.values_of(result, of_parts), "parts of the data are not heads"
    [figure] = result.figures
    assert figure.draw().axes and "Most sensitive" in figure.caption


def test_it_runs_only_if_it_is_named(small, labeled, tokens, finetuned):
    assert "curvature" not in [part.name for part in parts_of(())]
    assert [part.name for part in parts_of(["curvature"])] == ["curvature"]
    shared = make(finetuned.export.settings | {"model": SHAPE | {"sharing": "all"}}, tokens)
    assert "shares parameters" in Curvature().missing(Subject("shared", shared), [labeled])
    assert Curvature().missing(small, [labeled]) == ""
