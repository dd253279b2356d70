"""The part `layers` on small models: what it reports, and what it leaves out."""

import dataclasses

import numpy as np
import pytest

from bertjax.analysis.material import Labeled, texts_material
from bertjax.analysis.parts import part_of
from bertjax.analysis.parts.layers import Layers
from bertjax.analysis.probing.findings import on_task, with_random_weights
from bertjax.analysis.probing.tasks import labeled_task
from bertjax.analysis.reduce import hide, show
from bertjax.analysis.running import run_parts
from bertjax.analysis.subject import Subject
from bertjax.data.labeled.texts import LabeledText
from bertjax.runtime.errors import UserError
from tests.analysis.conftest import with_development_set
from tests.analysis.probing.test_tasks import SENTENCES, conllu


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


def test_figures_have_captions_and_alternatives(result):
    assert [figure.name for figure in result.figures] == ["lens", "rank", "contextuality", "variance", "cka"]
    for figure in result.figures:
        assert figure.caption.endswith(".") and figure.alternative.endswith(".")
    assert result.figures[-1].draw().axes


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


def test_random_weights_have_the_shapes_of_the_model(pretrained):
    random = with_random_weights(pretrained)
    shapes = [{path: leaf.shape for path, leaf in _leaves(subject)} for subject in (random, pretrained)]
    assert shapes[0] == shapes[1]
    assert random.label == "pretrained, random weights"


def _leaves(subject):
    from jax.tree_util import keystr, tree_leaves_with_path

    return [(keystr(path), leaf) for path, leaf in tree_leaves_with_path(subject.export.params["encoder"])]
