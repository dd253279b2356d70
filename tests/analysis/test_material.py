"""Materials: the examples of each kind, batches that hold each example once, and refusals in one line."""

import dataclasses
import gzip

import numpy as np
import pytest

from bertjax.analysis.material import Corpus, texts_material
from bertjax.analysis.material import labeled as labeled_material
from bertjax.errors import UserError
from tests.analysis.conftest import packed_rows


def test_batches_hold_every_example_once(pretrained, texts):
    encoded = texts.encoded(pretrained)
    seen, shapes = [], set()
    for batch in encoded.batches(pretrained.encoder):
        rows, (slot,) = np.nonzero(batch["example_ids_BN"] >= 0)[0], {0}
        shapes.add(batch["tokens_BT"].shape)
        for row in rows:
            index = batch["example_ids_BN"][row, slot]
            tokens = batch["tokens_BT"][row][batch["examples_BT"][row] > 0]
            np.testing.assert_array_equal(tokens, encoded.ragged.token_lists()[index])
            seen.append(index)
    assert sorted(seen) == list(range(50)) and len(shapes) <= 2


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


def test_corpus_examples_are_pairs_and_not_longer_than_the_model(models, pretrained, tmp_path, sentences):
    (tmp_path / "corpus.txt").write_text(
        "\n\n".join(" ".join(sentences[first : first + 12]) for first in range(0, 600, 12)), encoding="utf-8"
    )
    saved = pretrained.saved
    config = saved.config
    data = dataclasses.replace(config.data, store=str(tmp_path / "stores"), heldout_share=0.3, workers=0)
    object.__setattr__(saved, "config", dataclasses.replace(config, data=data))
    try:
        encoded = Corpus("corpus", 20, corpus=str(tmp_path / "corpus.txt")).encoded(pretrained)
    finally:
        object.__setattr__(saved, "config", config)
    assert 5 < len(encoded) <= 20 and encoded.ragged.lengths.max() <= 64
    separators = [np.count_nonzero(ids == pretrained.tokenizer.sep_id) for ids in encoded.ragged.token_lists()]
    assert set(separators) == {2} and encoded.objective is not None


def test_a_labeled_file_has_the_objective_of_the_model_that_was_trained_on_it(pretrained, finetuned, labeled):
    own, other = labeled.encoded(finetuned), labeled.encoded(pretrained)
    assert own.objective is finetuned.objective and other.objective is None
    assert len(own) == len(other) == 40
    np.testing.assert_array_equal(own.ragged.labels["label"], other.ragged.labels["label"])
    assert own.records[own.record_of[3]]["label"] == ("bad", "good")[own.ragged.labels["label"][3]]


def test_examples_are_drawn_once(finetuned, labeled):
    few = dataclasses.replace(labeled, examples=7)
    assert len(few.encoded(finetuned)) == 7
    np.testing.assert_array_equal(few.encoded(finetuned).record_of, few.encoded(finetuned).record_of)


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
