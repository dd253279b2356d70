"""Disabling heads: every number of the page is the difference of two scores."""

import numpy as np
import pytest

from bertjax.analysis.ablation import ablation_of
from bertjax.analysis.material import Labeled, texts_material
from bertjax.analysis.parts.disabling import Disabling, masks_with_one_kept
from bertjax.analysis.subject import open_subjects
from bertjax.config import export
from tests.interop import models as published


@pytest.fixture(scope="module")
def few(models, tmp_path_factory) -> Labeled:
    """The labeled file twice: enough rows for p-values."""
    header, *rows = models["labeled"].read_text().splitlines()
    path = tmp_path_factory.mktemp("twice") / "twice.tsv"
    path.write_text("\n".join([header, *rows, *rows]) + "\n")
    return Labeled("toy", path=str(path))


@pytest.fixture(scope="module")
def result(finetuned, few, texts):
    return Disabling().run([finetuned], [texts, few])


def test_masks_with_one_kept():
    masks = masks_with_one_kept((2, 3))
    assert len(masks) == 6
    np.testing.assert_array_equal(masks[4], [[1, 1, 1], [0, 1, 0]])
    np.testing.assert_array_equal(masks[0], [[1, 0, 0], [1, 1, 1]])


def test_changes_by_head(result, finetuned, few):
    ablation = ablation_of(finetuned, few)
    arrays = result.arrays
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


def test_numbers(result):
    numbers, arrays = result.numbers["finetuned"]["toy"], result.arrays
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


def test_figures_and_text(result):
    assert [figure.name for figure in result.figures] == ["scores", "one-kept", "one-off-1"]
    for figure in result.figures:
        assert figure.draw().axes and figure.caption and figure.alternative
    assert "of 12 heads change it at p < 0.01 (0.1 are expected by chance)" in result.text


def test_few_rows_have_no_p_values(pretrained, finetuned, models):
    """All resamples of a single row are the same: any change would be significant."""
    material = texts_material(["The king is here."])
    result = Disabling().run([pretrained], [material])
    numbers = result.numbers["pretrained"]["texts"]
    assert numbers["one_off"]["loss"]["significant"] == 0 and np.isnan(numbers["one_off"]["loss"]["most_harmful"]["p"])
    assert np.isnan(result.arrays["pretrained/texts/one_off_loss_p"]).all()
    assert np.isfinite(result.arrays["pretrained/texts/one_off_loss"]).all()
    assert "The number of rows, 1, is too small for p-values." in result.text and "p =" not in result.figures[0].caption


def test_what_is_missing(finetuned, texts, few):
    assert "has no head whose loss these texts have" in Disabling().missing(finetuned, [texts])
    assert Disabling().missing(finetuned, [texts, few]) == ""


def test_texts_in_which_nothing_is_predicted_have_no_loss(tokens, texts, tmp_path):
    """XLNet predicts a sixth of the tokens, in runs of up to five: of a short text sometimes none."""
    masking = {"kind": "ngrams", "longest": 5, "rate": 1 / 6, "mask": 0.0, "random": 0.0}
    xlnet = published.make(frozenset({"plm"}), tokens, "xlnet")
    xlnet.settings["tasks"]["permutation"]["objective"]["masking"] = masking
    export.write(tmp_path / "model", xlnet)
    [model] = open_subjects([tmp_path / "model"])
    short = texts_material(["king"])
    assert not ablation_of(model, short).has_loss
    assert Disabling().missing(model, [short]).startswith("predicts nothing in these texts")
    assert Disabling().missing(model, [short, texts]) == ""
