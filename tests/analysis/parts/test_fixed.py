"""The overlap of heads with fixed patterns: against loops over tokens, and of a model whose heads are fixed."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bertjax.analysis import drawing, series
from bertjax.analysis.part import Result
from bertjax.analysis.parts.fixed import Fixed, Overlap
from bertjax.analysis.subject import Subject, captured
from bertjax.models.bert import BertBlock
from bertjax.models.fixed import FIXED_PATTERNS
from tests.analysis.conftest import packed_rows
from tests.models.test_fixed import map_of


def overlap_of(attention_TT: np.ndarray, pattern: str) -> list[float]:
    """The overlap of each token of one example, token by token."""
    map_TT = map_of(pattern, len(attention_TT))
    return [np.minimum(row, other).sum() for row, other in zip(attention_TT, map_TT)]


@pytest.fixture(scope="module")
def result(pretrained, finetuned, texts) -> Result:
    return Fixed().run([pretrained, finetuned], [texts])


@pytest.mark.slow
def test_the_overlap_is_that_of_a_loop(result, pretrained, texts):
    encoded = texts.encoded(pretrained)
    overlaps = {pattern: [] for pattern in FIXED_PATTERNS}
    uniform = {pattern: [] for pattern in FIXED_PATTERNS}
    batch = encoded.batch(np.arange(len(encoded))[:, None], 64)
    attention_LBHTT = captured(pretrained.encoder, pretrained.params, batch, ["attention"])["attention"]
    for index, length in enumerate(encoded.ragged.lengths):
        attention_LHTT = np.asarray(attention_LBHTT[:, index, :, :length, :length], np.float64)
        for pattern in FIXED_PATTERNS:
            by_head = [[overlap_of(attention_TT, pattern) for attention_TT in heads] for heads in attention_LHTT]
            overlaps[pattern].append(np.array(by_head))
            uniform[pattern] += overlap_of(np.full((length, length), 1 / length), pattern)
    for index, pattern in enumerate(FIXED_PATTERNS):
        expected_LH = np.concatenate(overlaps[pattern], axis=-1).mean(axis=-1)
        np.testing.assert_allclose(
            result.arrays[f"{pretrained.label}/texts/overlap"][..., index], expected_LH, atol=1e-5, err_msg=pattern
        )
        mean = np.mean(uniform[pattern])
        np.testing.assert_allclose(result.arrays[f"{pretrained.label}/texts/uniform"][index], mean, atol=1e-5)
        likeness_LH = (expected_LH - mean) / (1 - mean)
        np.testing.assert_allclose(
            result.numbers[pretrained.label]["texts"]["mean"][pattern], likeness_LH.mean(), atol=1e-4
        )


def test_patterns_are_not_taken_for_layers(result, pretrained):
    subject = SimpleNamespace(label=pretrained.label, encoder=SimpleNamespace(layers=7, heads=4))
    assert ("texts", "uniform") not in series.values_of(result, subject)


def test_packed_rows_change_nothing(pretrained, texts):
    encoded, function = texts.encoded(pretrained), jax.jit(Overlap(pretrained.encoder))
    lengths = encoded.ragged.lengths[:6]
    packed = function(pretrained.params, encoded.batch(packed_rows(lengths, 48), 48))
    alone = function(pretrained.params, encoded.batch(np.arange(6)[:, None], 48))
    for name in packed:
        (total, weight), (expected, of_all) = packed[name], alone[name]
        assert weight == of_all == lengths.sum()
        np.testing.assert_allclose(total, expected, rtol=1e-4)


def test_fixed_heads_are_found(pretrained, texts):
    encoder = dataclasses.replace(pretrained.encoder, block=BertBlock(("next", "left", "end")))
    layers = dict(pretrained.params["encoder"]["layers"])
    narrow = {name: jax.tree.map(lambda leaf: leaf[..., -8:], layers["attention"][name]) for name in ("query", "key")}
    layers["attention"] = layers["attention"] | narrow
    params = pretrained.export.params | {"encoder": pretrained.export.params["encoder"] | {"layers": layers}}
    model = Subject("fixed", pretrained.export._replace(encoder=encoder, params=params))
    result = Fixed().run([model], [texts])
    numbers = result.numbers["fixed"]["texts"]
    assert [heads[:3] for heads in numbers["nearest"]] == [["next", "left", "end"]] * 3
    np.testing.assert_allclose(np.array(numbers["likeness"])[:, :3], 1.0, atol=1e-5)
    assert (np.array(numbers["likeness"])[:, 3] < 0.999).all() and numbers["above_half"] >= 0.75
    assert "Of its heads, 3 a layer are fixed." in result.text


def test_models_stand_beside_each_other(result, pretrained, finetuned):
    assert [figure.name for figure in result.figures] == ["nearest-texts", "patterns-texts"]
    for figure in result.figures:
        assert "<svg" in drawing.svg_of(figure.draw()) and "Raganato" in figure.caption
    assert pretrained.label in result.text and finetuned.label in result.text


def test_a_model_that_reads_from_left_to_right_is_left_out(pretrained, texts):
    encoder = dataclasses.replace(pretrained.encoder, direction="left_to_right")
    causal = Subject("causal", pretrained.export._replace(encoder=encoder))
    assert Fixed().missing(causal, [texts]).startswith("has model.direction=left_to_right")
    assert Fixed().missing(pretrained, [texts]) == ""
