"""Where heads look: every statistic against loops over 50 sentences, and gradients against finite differences."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.analysis.parts import training
from bertjax.analysis.parts.targets import (
    KINDS,
    TARGETS,
    Targets,
    divergence_sums,
    gradient_sums,
    kinds_of,
    target_sums,
)
from bertjax.analysis.reduce import reduce
from bertjax.analysis.subject import captured
from bertjax.models import attention

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kinds(pretrained) -> bytes:
    return kinds_of(pretrained.tokenizer)


@pytest.fixture(scope="module")
def attended(pretrained, texts) -> list[tuple[np.ndarray, np.ndarray]]:
    """(tokens, attention_LHTT) of each of the 50 sentences, in float64."""
    encoded = texts.encoded(pretrained)
    batch = encoded.batch(np.arange(len(encoded))[:, None], 64)
    attend = jax.jit(lambda params, batch: captured(pretrained.encoder, params, batch, ["attention"])["attention"])
    attention_LBHTT = np.asarray(attend(pretrained.params, batch), np.float64)
    return [
        (ids, attention_LBHTT[:, index, :, : len(ids), : len(ids)])
        for index, ids in enumerate(encoded.ragged.token_lists())
    ]


@pytest.fixture(scope="module")
def masked(pretrained, texts) -> dict[str, np.ndarray]:
    """A batch of nine sentences with masks."""
    return texts.encoded(pretrained).batch(np.arange(9)[:, None], 64, with_objective=True)


@pytest.fixture(scope="module")
def derivatives(pretrained, masked) -> np.ndarray:
    """dL / dA [L, B, H, T, T] of that batch, by the tap on the context."""
    values_LBTHD = captured(pretrained.encoder, pretrained.params, masked, ["values"])["values"]
    objective = pretrained.objective
    model = objective.model(pretrained.encoder)

    def loss(offset):
        masks = {"encoder": {"context_offset": offset}}
        return objective.terms(model, pretrained.params, None, masked, None, train=False, taps=masks)[0]["mlm"]

    gradient_LBTHD = jax.jit(jax.grad(loss))(jnp.zeros_like(values_LBTHD))
    return np.einsum("lbihd,lbjhd->lbhij", gradient_LBTHD, values_LBTHD)


def statistics_by_loops(attended, kinds, special_ids):
    """Mean over examples of means over tokens, cell by cell; the distance is a ratio of sums."""
    target, entropy, uniform = np.zeros((len(TARGETS), 3, 4)), np.zeros((3, 4)), 0.0
    far, near = np.zeros((3, 4)), np.zeros((3, 4))
    for ids, attention_LHTT in attended:
        n = len(ids)
        uniform += np.log(n) / len(attended)
        for i in range(n):
            for j in range(n):
                weight = attention_LHTT[:, :, i, j] / n / len(attended)
                has = {
                    "[CLS]": KINDS[kinds[ids[j]]] == "[CLS]",
                    "[SEP]": KINDS[kinds[ids[j]]] == "[SEP]",
                    "punctuation": KINDS[kinds[ids[j]]] == "punctuation",
                    "previous": j == i - 1,
                    "next": j == i + 1,
                    "same word": i != j and ids[i] == ids[j] and ids[i] not in special_ids,
                    "itself": i == j,
                }
                for number, name in enumerate(TARGETS):
                    target[number] += weight * has[name]
                if ids[i] not in special_ids and ids[j] not in special_ids:
                    far += weight * abs(i - j)
                    near += weight
                entropy -= weight * np.log(np.maximum(attention_LHTT[:, :, i, j], 1e-30))
    return {"target": target, "entropy": entropy, "uniform_entropy": uniform, "distance": far / near}


def test_statistics_are_those_of_loops(pretrained, texts, attended, kinds):
    special = pretrained.vocabulary.special_ids
    result = reduce(pretrained, texts, target_sums(pretrained.encoder, kinds, special))
    expected = statistics_by_loops(attended, kinds, special)
    assert result.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(result[name], expected[name], atol=1e-5, err_msg=name)
    assert expected["target"][TARGETS.index("same word")].max() > 0


def test_divergences_are_those_of_loops(pretrained, texts, attended):
    result = reduce(pretrained, texts, divergence_sums(pretrained.encoder))["divergence"]
    expected = np.zeros((12, 12))
    for _, attention_LHTT in attended:
        heads = attention_LHTT.reshape(12, *attention_LHTT.shape[2:])
        for one in range(12):
            for other in range(12):
                middle = (heads[one] + heads[other]) / 2
                for head in (one, other):
                    terms = heads[head] * np.log(np.maximum(heads[head], 1e-30) / np.maximum(middle, 1e-30))
                    expected[one, other] += 0.5 * terms.sum() / len(middle) / len(attended)
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_gradients_are_those_of_finite_differences(pretrained, masked, derivatives, monkeypatch):
    """A cell of the attention of the first layers is moved; the loss changes by the sum of its derivatives."""
    objective, plain = pretrained.objective, attention.attend
    model = objective.model(pretrained.encoder)
    i, j, head, step = 4, int(masked["examples_BT"][0].sum()) - 1, 2, 0.02
    cell_BHTT = jnp.zeros((9, 4, 64, 64)).at[0, head, i, j].set(1.0)

    def loss(step):
        def moved(query, key, value, mask, *rest):
            context, probabilities = plain(query, key, value, mask, *rest)
            if probabilities.shape[2] != cell_BHTT.shape[2]:  # the last layer computes only the predicted positions
                return context, probabilities
            return context + step * jnp.einsum("bhij,bjhd->bihd", cell_BHTT, value), probabilities

        monkeypatch.setattr(attention, "attend", moved)
        return objective.terms(model, pretrained.params, None, masked, None, train=False)[0]["mlm"]

    above, below = np.asarray(jax.jit(lambda steps: jax.lax.map(loss, steps))(jnp.array([step, -step])), np.float64)
    derivative = derivatives[:2, 0, head, i, j].sum()
    assert (above - below) / (2 * step) == pytest.approx(derivative, rel=2e-3, abs=1e-5)
    assert abs(derivative) > 1e-4


def test_gradients_by_kind_are_those_of_loops(pretrained, masked, derivatives, kinds):
    function = jax.jit(gradient_sums(pretrained.encoder, pretrained.objective, kinds, 0))
    totals, counts = function(pretrained.params, masked)["gradient"]
    expected, pairs = np.zeros((4, 3, 4)), np.zeros(4)
    for row, length in enumerate(masked["examples_BT"].sum(axis=1)):
        for i in range(length):
            for j in range(length):
                kind = kinds[masked["tokens_BT"][row, j]]
                expected[kind] += np.abs(derivatives[:, row, :, i, j])
                pairs[kind] += 1
    np.testing.assert_allclose(totals, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(counts)[:, 0, 0], pairs)


def test_the_part_has_gradients_where_there_is_a_loss(subjects, labeled):
    subjects = [dataclasses.replace(subject, label=f"3 layers, {subject.label}") for subject in subjects]
    result = Targets().run(subjects, [dataclasses.replace(labeled, examples=3)])
    pretrained, finetuned = (result.numbers[subject.label]["toy"] for subject in subjects)
    assert "gradient_by_layer" in finetuned and "gradient_by_layer" not in pretrained
    assert result.arrays["3 layers, finetuned/toy/target"].shape == (7, 3, 4)
    assert training.values_of(result, subjects[0])["toy", "groups"].ndim == 0
    assert [figure.name for figure in result.figures] == [
        *("targets-1", "entropy-1", "heads-1", "targets-2", "entropy-2", "heads-2", "gradient-2")
    ]
    for figure in result.figures:
        assert figure.drawn.axes and figure.alternative
    assert pretrained["groups"] >= 2 and pretrained["divergence_in_a_layer"] > 0
