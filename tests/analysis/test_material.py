"""Materials: the examples of each kind, batches that hold each example once, and refusals in one line."""

import dataclasses
import gzip

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import analysis
from bertjax.analysis.material import Corpus, texts_material
from bertjax.analysis.material import labeled as labeled_material
from bertjax.analysis.parts.identifiability import Lengths
from bertjax.analysis.reduce import reduce
from bertjax.analysis.running import materials_of
from bertjax.analysis.subject import Subject, captured
from bertjax.config.opening import SavedModel
from bertjax.runtime.errors import UserError
from tests.analysis.conftest import with_development_set


@pytest.fixture(scope="module")
def with_corpora(models, sentences, tmp_path_factory) -> list[Subject]:
    """The pretrained model twice, each with a corpus of its own."""
    folder, subjects = tmp_path_factory.mktemp("corpora"), []
    for name, part in (("first", sentences[:300]), ("second", sentences[300:600])):
        path, saved = folder / f"{name}.txt", SavedModel(models["pretrained"])
        path.write_text("\n\n".join(" ".join(part[i : i + 12]) for i in range(0, len(part), 12)), encoding="utf-8")
        data = dataclasses.replace(
            saved.config.data, corpus=str(path), store=str(folder / "stores"), heldout_share=0.4, workers=0
        )
        saved.config = dataclasses.replace(saved.config, data=data)
        subjects.append(Subject(name, saved.export, saved))
    return subjects


def test_a_mask_in_a_given_text_is_the_symbol(pretrained):
    encoded = texts_material(["the king is [MASK] ."]).encoded(pretrained)
    assert np.count_nonzero(encoded.ragged.tokens == pretrained.vocabulary.mask_id) == 1


@pytest.mark.parametrize("wrap", [lambda corpus: corpus, Lengths.of])
def test_each_model_reads_its_own_corpus(with_corpora, wrap):
    """Although the tokenizers are equal."""
    material = wrap(Corpus("corpus", 8))
    first, second = (material.encoded(subject) for subject in with_corpora)
    assert first.ragged.tokens.tolist() != second.ragged.tokens.tolist()
    for subject, encoded in zip(with_corpora, (first, second)):
        alone = wrap(Corpus("corpus", 8)).encoded(subject)
        np.testing.assert_array_equal(encoded.ragged.tokens, alone.ragged.tokens)


def test_models_of_both_kinds_read_their_own_texts(finetuned, with_corpora, models, tmp_path):
    tuned = with_development_set(tmp_path / "tuned", finetuned, models["labeled"])
    for subjects in ([tuned, with_corpora[0]], [with_corpora[0], tuned]):
        [material] = materials_of(subjects, examples=4)
        assert material.name == "own held-out texts" and "--labeled" in material.note
        assert material.encoded(tuned).objective is tuned.objective and material.encoded(tuned).records
        assert not material.encoded(with_corpora[0]).records
        assert material.objective(with_corpora[0]) == with_corpora[0].pretraining
        result = analysis.patterns(subjects, examples=4)
        assert {label: entry["own held-out texts"]["examples"] for label, entry in result.numbers.items()} == {
            "tuned": 4,
            "first": 4,
        }


def test_names_of_own_texts(finetuned, choosing, with_corpora, models, tmp_path):
    tuned = with_development_set(tmp_path / "tuned", finetuned, models["labeled"])
    assert [material.name for material in materials_of([tuned])] == ["toy dev"]
    assert [material.name for material in materials_of([tuned, choosing])] == ["own dev sets"]
    assert [material.name for material in materials_of(with_corpora)] == ["corpus"]


def test_what_is_refused(pretrained, models, tmp_path):
    with pytest.raises(UserError, match=r"the text 'word word .* has \d+ tokens and pretrained reads 64; shorten it"):
        texts_material(["word " * 80]).encoded(pretrained)
    with pytest.raises(
        UserError, match="the text '안녕' has no token that the vocabulary of pretrained knows; give an"
    ):
        texts_material(["안녕"]).encoded(pretrained)
    with pytest.raises(UserError, match="is not a file"):
        labeled_material(str(tmp_path / "none.tsv"), 10)
    with pytest.raises(UserError, match="choose one of CoLA"):
        labeled_material("glue:SST", 10)
    with pytest.raises(UserError, match="dev.tsv does not exist"):
        labeled_material(f"glue:{tmp_path}/SST-2", 10)


def test_a_task_of_glue_is_found_compressed_too(tmp_path):
    folder = tmp_path / "SST-2"
    folder.mkdir()
    with gzip.open(folder / "dev.tsv.gz", "wt") as file:
        file.write("sentence\tlabel\na fine film\t1\na dull film\t0\n")
    found = labeled_material(f"glue:{folder}", 10)
    assert found.name == "glue:SST-2" and found.format.heldout.endswith("dev.tsv.gz")


def test_a_mean_over_examples_of_any_length_is_that_of_single_examples(pretrained, texts):
    def function(params, batch):
        real_BT = batch["examples_BT"] > 0
        hidden = captured(pretrained.encoder, params, batch, ["hidden"])["hidden"][-1]
        total = jnp.sum(jnp.where(real_BT[..., None], hidden, 0.0), axis=(0, 1))
        return {"mean": (total, real_BT.sum()), "none": (jnp.zeros(2), jnp.zeros(2))}

    result = reduce(pretrained, texts, function)
    alone = jax.jit(lambda batch: captured(pretrained.encoder, pretrained.params, batch, ["hidden"])["hidden"][-1, 0])
    encoded, total, count = texts.encoded(pretrained), np.zeros(32), 0
    for index, length in enumerate(encoded.ragged.lengths):
        hidden = alone(encoded.batch(np.array([[index]]), int(encoded.ragged.lengths.max())))[:length]
        total += np.asarray(hidden, np.float64).sum(axis=0)
        count += len(hidden)
    np.testing.assert_allclose(result["mean"], total / count, atol=1e-5)
    assert np.isnan(result["none"]).all() and result["mean"].dtype == np.float64
