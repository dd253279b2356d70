"""Materials: the examples of each kind, batches that hold each example once, and refusals in one line."""

import dataclasses
import gzip
import json

import numpy as np
import pytest

from bertjax import analysis
from bertjax.analysis.material import Corpus, Labeled, texts_material
from bertjax.analysis.material import labeled as labeled_material
from bertjax.analysis.parts.identifiability import Lengths
from bertjax.analysis.running import materials_of
from bertjax.analysis.subject import Subject
from bertjax.config.opening import SavedModel
from bertjax.data.labeled.siamese import SiamesePairs
from bertjax.inference.finetuned import FineTuned
from bertjax.runtime.errors import UserError
from tests.analysis.conftest import packed_rows, with_development_set


def test_masks_depend_on_the_example_only(pretrained, texts):
    encoded = texts.encoded(pretrained)
    lengths = encoded.ragged.lengths
    alone = encoded.batch(np.arange(6)[:, None], 64, with_objective=True)
    packed = encoded.batch(packed_rows(lengths[:6], 64), 64, with_objective=True)

    def masked(batch):
        is_masked = batch["tokens_BT"] == pretrained.vocabulary.mask_id
        rows, columns = np.nonzero(is_masked)
        slots = batch["examples_BT"][rows, columns] - 1
        return sorted(zip(batch["example_ids_BN"][rows, slots], batch["positions_BT"][rows, columns]))

    assert masked(alone) == masked(packed) and masked(alone)


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


def test_corpus_examples_are_pairs_and_not_longer_than_the_model(pretrained, with_corpora):
    saved = with_corpora[0].saved
    encoded = Corpus("corpus", 20, corpus=saved.config.data.corpus).encoded(with_corpora[1])
    assert 5 < len(encoded) <= 20 and encoded.ragged.lengths.max() <= 64
    separators = [np.count_nonzero(ids == pretrained.tokenizer.sep_id) for ids in encoded.ragged.token_lists()]
    assert set(separators) == {2} and encoded.objective is not None


def test_a_labeled_file_has_the_objective_of_the_model_that_was_trained_on_it(pretrained, finetuned, labeled):
    own, other = labeled.encoded(finetuned), labeled.encoded(pretrained)
    assert own.objective is finetuned.objective and other.objective is None
    assert len(own) == len(other) == 40
    np.testing.assert_array_equal(own.ragged.labels["label"], other.ragged.labels["label"])
    assert own.records[own.record_of[3]]["label"] == ("bad", "good")[own.ragged.labels["label"][3]]


@pytest.mark.parametrize("wrap", [lambda corpus: corpus, Lengths.of])
def test_each_model_reads_its_own_corpus(with_corpora, wrap):
    """Although the tokenizers are equal."""
    material = wrap(Corpus("corpus", 8))
    first, second = (material.encoded(subject) for subject in with_corpora)
    assert first.ragged.tokens.tolist() != second.ragged.tokens.tolist()
    for subject, encoded in zip(with_corpora, (first, second)):
        alone = wrap(Corpus("corpus", 8)).encoded(subject)
        np.testing.assert_array_equal(encoded.ragged.tokens, alone.ragged.tokens)


def test_each_fine_tuned_model_reads_its_own_development_set(finetuned, models, tmp_path):
    """Although tokenizers and classes are equal; models with one file share its examples."""
    (tmp_path / "other.tsv").write_text("sentence\tlabel\nA king.\tgood\nA day.\tbad\n")
    paths = models["labeled"], tmp_path / "other.tsv", models["labeled"]
    subjects = [with_development_set(tmp_path / str(i), finetuned, path) for i, path in enumerate(paths)]
    material = Labeled("toy dev")
    first, other, again = (material.encoded(subject) for subject in subjects)
    assert (len(first), len(other)) == (40, 2) and [r["sentence"] for r in other.records] == ["A king.", "A day."]
    assert again.ragged is first.ragged


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


def test_a_choice_has_as_many_tokens_as_in_a_prediction(choosing):
    encoded = Labeled("exam dev").encoded(choosing)
    predicted = FineTuned(choosing.export).encode(encoded.records)
    np.testing.assert_array_equal(encoded.ragged.lengths, predicted.lengths())
    assert (encoded.ragged.lengths == 64).all() and encoded.group == 3 and len(encoded) == 12
    [batch] = encoded.batches(choosing.encoder)
    assert batch["tokens_BT"].shape[1] == 192


def test_texts_of_pairs_are_as_long_without_an_objective(finetuned, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"sentence1": "the king " * 99, "sentence2": "a day", "label": "unknown"}) + "\n")
    material = Labeled("pairs", format=SiamesePairs(heldout=str(path)), length=16)
    assert material.encoded(finetuned).ragged.lengths[0] == 16


def test_what_is_refused(pretrained, models, tmp_path):
    with pytest.raises(UserError, match=r"the text 'word word .* has \d+ tokens and pretrained reads 64; shorten it"):
        texts_material(["word " * 80]).encoded(pretrained)
    with pytest.raises(
        UserError, match="the text '안녕' has no token that the vocabulary of pretrained knows; give an"
    ):
        texts_material(["안녕"]).encoded(pretrained)
    with pytest.raises(UserError, match="no text to analyze"):
        texts_material([])
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
