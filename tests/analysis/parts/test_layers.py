"""The part `layers` on small models: what it reports, and what it leaves out."""

import dataclasses

import jax
import numpy as np
import pytest

from bertjax.analysis import drawing
from bertjax.analysis.material import Labeled, texts_material
from bertjax.analysis.part import Result
from bertjax.analysis.parts import part_of
from bertjax.analysis.parts.fixed import Fixed, Overlap
from bertjax.analysis.parts.layers import Layers
from bertjax.analysis.probing.findings import on_task
from bertjax.analysis.probing.tasks import labeled_task
from bertjax.analysis.reduce import hide, show
from bertjax.analysis.running import run_parts
from bertjax.analysis.subject import Subject, captured
from bertjax.data.labeled.texts import LabeledText
from bertjax.models.bert import BertBlock
from bertjax.models.fixed import FIXED_PATTERNS
from bertjax.runtime.errors import UserError
from tests.analysis.conftest import packed_rows, with_development_set
from tests.analysis.probing.test_tasks import SENTENCES, conllu
from tests.models.test_fixed import map_of


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


@pytest.mark.slow
def test_models_with_their_own_files_are_probed_on_them(finetuned, tmp_path):
    """Tokenizers and classes are equal; states of different texts are not compared."""
    subjects = []
    for name, count in (("a", 6), ("b", 9)):
        path = tmp_path / f"{name}.tsv"
        rows = [f"{name} king is {i} .\t{('bad', 'good')[i % 2]}" for i in range(count)]
        path.write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
        subjects.append(with_development_set(tmp_path / name, finetuned, path))
    result = Layers().run(subjects, [Labeled("toy dev")])
    probes = {name: found["toy dev"]["probe"] for name, found in result.numbers.items()}
    assert {name: probe["train"] + probe["heldout"] for name, probe in probes.items()} == {"a": 6, "b": 9}
    assert set(result.arrays) == {"toy dev/cka/a", "toy dev/cka/b"}


def test_few_words_have_no_figures_without_numbers(finetuned):
    result = Layers().run([finetuned], [texts_material(["the king is"])])
    assert not result.arrays and result.numbers["finetuned"]["texts"]["cka"] is None
    assert not result.figures and "texts has fewer than 4 words" in result.text
    two = Layers().run([finetuned], [texts_material(["the king is", "a day"])])
    assert [figure.name for figure in two.figures] == ["contextuality", "cka"]
    for figure in two.figures:
        assert "nan" not in figure.caption + figure.alternative and figure.alternative.count(":")


@pytest.mark.slow
def test_trees_and_tags_are_probed_beside_random_weights(pretrained, tmp_path):
    paths = [tmp_path / name for name in ("a.conllu", "b.conllu")]
    for path in paths:
        path.write_text(conllu(SENTENCES * 4))
    part = Layers(heldout=str(paths[1]), rank=8)
    result = part.run([pretrained], [Labeled("a.conllu", 0, path=str(paths[0]))])
    found = result.numbers["pretrained"]["a.conllu"]
    probe, trees = found["probe"], found["trees"]
    assert (probe["train"], probe["heldout"], probe["classes"]) == (60, 60, 5)
    # The held-out sentences are the same ones: a linear probe of ten words has memorized them.
    assert max(probe["accuracy"]) > 0.95 and max(probe["control_accuracy"]) > 0.9
    assert probe["majority"] == pytest.approx(20 / 60)
    assert len(probe["random_accuracy"]) == len(trees["random_uuas"]) == 4
    assert trees["train"] == 24 and trees["rank"] == 8 and max(trees["uuas"]) > trees["chain_uuas"]
    # No sentence has the five words that the correlation is averaged from.
    assert [figure.name for figure in result.figures][-3:] == ["probe", "code", "uuas"]
    assert "The structural probe is best on layer" in result.text


def test_cls_is_not_probed_if_it_does_not_see_the_text(pretrained, tmp_path):
    (tmp_path / "a.tsv").write_text("sentence\tlabel\n" + "A king.\tone\nKings sleep.\ttwo\n" * 3)
    encoder = dataclasses.replace(pretrained.export.encoder, direction="left_to_right")
    task = labeled_task("a", LabeledText(heldout=str(tmp_path / "a.tsv")), examples=0, seed=0, pooling="first")
    with pytest.raises(UserError, match="^left has model.direction=left_to_right, .*; probe it with --pooling=mean"):
        on_task(Subject("left", pretrained.export._replace(encoder=encoder)), task, 0, hide)


def _leaves(subject):
    from jax.tree_util import keystr, tree_leaves_with_path

    return [(keystr(path), leaf) for path, leaf in tree_leaves_with_path(subject.export.params["encoder"])]


def overlap_of(attention_TT: np.ndarray, pattern: str) -> list[float]:
    """The overlap of each token of one example, token by token."""
    map_TT = map_of(pattern, len(attention_TT))
    return [np.minimum(row, other).sum() for row, other in zip(attention_TT, map_TT)]


@pytest.fixture(scope="module")
def result_of_fixed(pretrained, finetuned, texts) -> Result:
    return Fixed().run([pretrained, finetuned], [texts])


@pytest.mark.slow
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
    result_of_fixed = Fixed().run([model], [texts])
    numbers = result_of_fixed.numbers["fixed"]["texts"]
    assert [heads[:3] for heads in numbers["nearest"]] == [["next", "left", "end"]] * 3
    np.testing.assert_allclose(np.array(numbers["likeness"])[:, :3], 1.0, atol=1e-5)
    assert (np.array(numbers["likeness"])[:, 3] < 0.999).all() and numbers["above_half"] >= 0.75
    assert "Of its heads, 3 a layer are fixed." in result_of_fixed.text


def test_models_stand_beside_each_other(result_of_fixed, pretrained, finetuned):
    assert [figure.name for figure in result_of_fixed.figures] == ["nearest-texts", "patterns-texts"]
    for figure in result_of_fixed.figures:
        assert "<svg" in drawing.svg_of(figure.draw()) and "Raganato" in figure.caption
    assert pretrained.label in result_of_fixed.text and finetuned.label in result_of_fixed.text


def test_a_model_that_reads_from_left_to_right_is_left_out(pretrained, texts):
    encoder = dataclasses.replace(pretrained.encoder, direction="left_to_right")
    causal = Subject("causal", pretrained.export._replace(encoder=encoder))
    assert Fixed().missing(causal, [texts]).startswith("has model.direction=left_to_right")
    assert Fixed().missing(pretrained, [texts]) == ""
