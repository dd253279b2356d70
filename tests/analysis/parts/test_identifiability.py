"""The part `identifiability` against its definition, sentence by sentence and in float64."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from scipy import linalg

from bertjax.analysis.material import texts_material
from bertjax.analysis.parts import training
from bertjax.analysis.parts.identifiability import EDGES, KINDS, Identifiability, Statistics, is_period_or_comma
from bertjax.analysis.parts.targets import kinds_of
from bertjax.analysis.reduce import reduce
from bertjax.analysis.subject import Subject, captured
from bertjax.config.export import Export

pytestmark = pytest.mark.slow

NAMES = ("correlation", "constrained_correlation", "rank", "null_dimension", "constrained_null_dimension")


@pytest.fixture(scope="module")
def material(sentences):
    """50 texts of one to three sentences, up to 64 tokens. The heads of the models are 8 wide."""
    return texts_material([" ".join(sentences[i : i + 1 + i % 3])[:120] for i in range(50)])


@pytest.fixture(scope="module")
def statistics(pretrained):
    return Statistics(pretrained.encoder, kinds_of(pretrained.tokenizer, is_period_or_comma))


@pytest.fixture(scope="module")
def results(pretrained, material, statistics):
    return reduce(pretrained, material, statistics)


def null_projection(matrix: np.ndarray) -> np.ndarray:
    null_TK = linalg.null_space(matrix.T)
    return null_TK @ null_TK.T


def of_sentence(subject, tokens_T, captured_values) -> dict[str, np.ndarray]:
    """The statistics of one sentence by the formulas of the paper, with H as it is and scipy's null spaces."""
    values = {"values": captured_values["values"][:, :, : len(tokens_T)]}
    values["attention"] = captured_values["attention"][..., : len(tokens_T), : len(tokens_T)]
    layers = subject.export.params["encoder"]["layers"]
    output_LDD = np.asarray(layers["attention"]["output"]["kernel"], np.float64)
    L, _, T, H, width = values["values"].shape
    results = {name: np.zeros((L, H)) for name in NAMES}
    attention = np.zeros((3, len(KINDS), L, H))
    pieces = [subject.tokenizer.piece(int(token)) for token in tokens_T]
    kinds = ["period or comma" if p in (".", ",") else p if p in ("[CLS]", "[SEP]") else "other" for p in pieces]
    for layer in range(L):
        for head in range(H):
            rows = slice(head * width, (head + 1) * width)
            raw_TT = np.asarray(values["attention"][layer, 0, head], np.float64)
            transform_TD = np.asarray(values["values"][layer, 0, :, head], np.float64) @ output_LDD[layer, rows]
            with_ones = np.concatenate([transform_TD, np.ones((T, 1))], axis=1)
            maps = [raw_TT] + [raw_TT - raw_TT @ null_projection(matrix) for matrix in (transform_TD, with_ones)]
            results["rank"][layer, head] = np.linalg.matrix_rank(transform_TD, rtol=1e-6)
            results["null_dimension"][layer, head] = T - results["rank"][layer, head]
            results["constrained_null_dimension"][layer, head] = T - np.linalg.matrix_rank(with_ones, rtol=1e-6)
            for name, each in zip(NAMES[:2], maps[1:], strict=True):
                results[name][layer, head] = np.corrcoef(raw_TT.ravel(), each.ravel())[0, 1]
            for number, each in enumerate(maps):
                for token, kind in enumerate(kinds):
                    attention[number, KINDS.index(kind), layer, head] += each[:, token].sum()
    return results | {"attention": attention}


def test_every_statistic_is_that_of_a_loop_over_sentences_and_heads(pretrained, material, results):
    encoded = material.encoded(pretrained)
    assert len(encoded) == 50
    sums = {name: np.zeros_like(results[name]) for name in NAMES}
    counts, tokens = np.zeros(len(EDGES)), np.zeros(len(EDGES))
    attention, queries = 0.0, 0
    capture = jax.jit(lambda batch: captured(pretrained.encoder, pretrained.params, batch, ("values", "attention")))
    for index, length in enumerate(encoded.ragged.lengths):
        batch = encoded.batch(np.array([[index]]), 64)
        single = of_sentence(pretrained, batch["tokens_BT"][0, :length], jax.device_get(capture(batch)))
        place = max(number for number, edge in enumerate(EDGES) if length > edge)
        counts[place] += 1
        tokens[place] += length
        for name in NAMES:
            sums[name][place] += single[name]
        if length > 8:
            attention, queries = attention + single["attention"], queries + length
    assert (counts > 0).sum() >= 3
    with np.errstate(invalid="ignore"):
        for name in NAMES:
            np.testing.assert_allclose(results[name], sums[name] / counts[:, None, None], atol=1e-5, err_msg=name)
        np.testing.assert_allclose(results["tokens"], tokens / counts)
    np.testing.assert_allclose(results["attention"], attention / queries, atol=1e-5)
    raw, effective, constrained = results["attention"]
    np.testing.assert_allclose(raw.sum(axis=0), 1.0, atol=1e-5)
    np.testing.assert_allclose(constrained.sum(axis=0), 1.0, atol=1e-5)
    assert np.abs(effective.sum(axis=0) - 1.0).max() > 0.01


def test_the_result_has_numbers_arrays_and_figures_of_every_model(subjects, material):
    result = Identifiability().run(subjects, [material])
    for subject in subjects:
        entry = result.numbers[subject.label]["texts"]
        assert entry["head_width"] == 8 and (np.diff(entry["tokens"]) > 0).all()
        assert (entry["null_dimension"] - entry["constrained_null_dimension"] <= 1.0).all()
        assert result.arrays[f"{subject.label}/texts/attention"].shape == (3, 4, 3, 4)
        assert subject.label in result.text
    assert [figure.name for figure in result.figures] == ["length", "heads", "kinds-1", "kinds-2"]
    for figure in result.figures[:3]:
        assert "<svg" in figure.svg and figure.caption and figure.alternative


def test_short_sentences_have_no_attention_without_an_effect(pretrained):
    subject = dataclasses.replace(pretrained, label="small, 3 layers")
    result = Identifiability().run([subject], [texts_material(["the king .", "a day ."])])
    entry = result.numbers[subject.label]["texts"]
    np.testing.assert_allclose(entry["correlation"], 1.0, atol=1e-5)
    assert "effective attention is raw attention" in result.text
    assert np.isnan(result.arrays["small, 3 layers/texts/attention"]).all()
    of_lengths = SimpleNamespace(label=subject.label, encoder=SimpleNamespace(layers=len(EDGES), heads=4))
    assert all(array.ndim == 0 for array in training.values_of(result, of_lengths).values()), "lengths are not layers"
    assert not result.figures, "a curve at 1"


def _with(subject: Subject, **settings) -> Export:
    return subject.export._replace(encoder=dataclasses.replace(subject.export.encoder, **settings))


def test_a_causal_model_is_left_out(pretrained):
    causal = Subject("causal", _with(pretrained, direction="left_to_right"))
    assert not Identifiability().lacks(pretrained, [])
    assert "model.direction=left_to_right" in Identifiability().lacks(causal, [])
