"""The part `layers` on small models: what it reports, and what it leaves out."""

import dataclasses

import jax
import numpy as np
import pytest

from bertjax.analysis.material import texts_material
from bertjax.analysis.part import Result
from bertjax.analysis.parts import part_of
from bertjax.analysis.parts.layers import Layers
from bertjax.analysis.parts.patterns import Fixed
from bertjax.analysis.reduce import show
from bertjax.analysis.running import run_parts
from bertjax.analysis.subject import Subject, captured
from bertjax.models.bert import BertBlock
from bertjax.models.fixed import FIXED_PATTERNS
from tests.models.test_fixed import map_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result(subjects, texts):
    [outcome] = run_parts([part_of("layers")], subjects, [texts], show)
    return outcome.result


def test_each_model_has_its_measures_by_layer(result, subjects):
    pretrained, finetuned = (result.numbers[subject.label]["texts"] for subject in subjects)
    assert len(pretrained["lens"]["accuracy"]) == 4 and "lens" not in finetuned
    assert result.text == "There is no logit lens of finetuned on texts: it has no masked-LM head."
    for found in (pretrained, finetuned):
        measured = found["contextuality"]
        np.testing.assert_allclose(
            measured["adjusted_self_similarity"], np.subtract(measured["self_similarity"], measured["anisotropy"])
        )
        # Word embeddings with positions: two occurrences of a word are more alike than two words.
        assert measured["adjusted_self_similarity"][0] > 0.1
        np.testing.assert_allclose(np.diag(found["cka"]), 1)


def test_models_of_one_tokenizer_are_compared(result):
    cross = result.arrays["texts/cka/pretrained and finetuned"]
    assert cross.shape == (4, 4)
    assert cross[0, 0] == pytest.approx(1)  # the embeddings are the same
    assert cross[3, 3] < 0.9999 and cross[0, 3] < cross[3, 3]


def test_few_words_have_no_figures_without_numbers(finetuned):
    result = Layers().run([finetuned], [texts_material(["the king is"])])
    assert not result.arrays and result.numbers["finetuned"]["texts"]["cka"] is None
    assert not result.figures and "texts has fewer than 4 words" in result.text
    two = Layers().run([finetuned], [texts_material(["the king is", "a day"])])
    assert [figure.name for figure in two.figures] == ["contextuality", "cka"]
    for figure in two.figures:
        assert "nan" not in figure.caption + figure.alternative and figure.alternative.count(":")


def overlap_of(attention_TT: np.ndarray, pattern: str) -> list[float]:
    """The overlap of each token of one example, token by token."""
    map_TT = map_of(pattern, len(attention_TT))
    return [np.minimum(row, other).sum() for row, other in zip(attention_TT, map_TT)]


@pytest.fixture(scope="module")
def result_of_fixed(pretrained, finetuned, texts) -> Result:
    return Fixed().run([pretrained, finetuned], [texts])


def test_the_overlap_is_that_of_a_loop(result_of_fixed, pretrained, texts):
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
            result_of_fixed.arrays[f"{pretrained.label}/texts/overlap"][..., index],
            expected_LH,
            atol=1e-5,
            err_msg=pattern,
        )
        mean = np.mean(uniform[pattern])
        np.testing.assert_allclose(result_of_fixed.arrays[f"{pretrained.label}/texts/uniform"][index], mean, atol=1e-5)
        likeness_LH = (expected_LH - mean) / (1 - mean)
        np.testing.assert_allclose(
            result_of_fixed.numbers[pretrained.label]["texts"]["mean"][pattern], likeness_LH.mean(), atol=1e-4
        )


def test_fixed_heads_are_found(pretrained, texts):
    encoder = dataclasses.replace(pretrained.encoder, block=BertBlock(("next", "left", "end")))
    layers = dict(pretrained.params["encoder"]["layers"])
    narrow = {name: jax.tree.map(lambda leaf: leaf[..., -8:], layers["attention"][name]) for name in ("query", "key")}
    layers["attention"] = layers["attention"] | narrow
    params = pretrained.export.params | {"encoder": pretrained.export.params["encoder"] | {"layers": layers}}
    model = Subject("fixed", pretrained.export._replace(encoder=encoder, params=params))
    result_of_fixed = Fixed().run([model], [texts])
    numbers = result_of_fixed.numbers["fixed"]["texts"]
    assert [heads[:3] for heads in numbers["nearest"]] == [["next", "left", "end"]] * 3
    np.testing.assert_allclose(np.array(numbers["likeness"])[:, :3], 1.0, atol=1e-5)
    assert (np.array(numbers["likeness"])[:, 3] < 0.999).all() and numbers["above_half"] >= 0.75
    assert "Of its heads, 3 a layer are fixed." in result_of_fixed.text


def test_models_stand_beside_each_other(result_of_fixed, pretrained, finetuned):
    assert [figure.name for figure in result_of_fixed.figures] == ["nearest-texts", "patterns-texts"]
    for figure in result_of_fixed.figures:
        assert "<svg" in figure.svg and "Raganato" in figure.caption
    assert pretrained.label in result_of_fixed.text and finetuned.label in result_of_fixed.text


def test_a_model_that_reads_from_left_to_right_is_left_out(pretrained, texts):
    encoder = dataclasses.replace(pretrained.encoder, direction="left_to_right")
    causal = Subject("causal", pretrained.export._replace(encoder=encoder))
    assert Fixed().lacks(causal, [texts]).startswith("has model.direction=left_to_right")
    assert Fixed().lacks(pretrained, [texts]) == ""
