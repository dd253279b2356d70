"""Pairs that are encoded separately: two examples per record in one row, and errors in files."""

import json

import numpy as np
import pytest

from bertjax.config.config import Task
from bertjax.data.labeled.siamese import SiamesePairs
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.plan import Spec
from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.finetuning.embeddings import EmbeddingContrastive, EmbeddingRegression
from bertjax.runtime.errors import UserError
from tests import labeled_files

T = 48


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return labeled_files.write(tmp_path_factory.mktemp("pairs"))


def source(files, store, **choices) -> LabeledSource:
    train, heldout = map(str, files)
    choices = {"text": "sentence", "pair": "other", "label": "score"} | choices
    return LabeledSource(SiamesePairs(train=train, heldout=heldout, **choices), store.tokenizer)


def test_a_record_is_two_examples(files, store):
    labeled, tokenizer = source(files, store), store.tokenizer
    examples = labeled.examples("train", T, ())
    ragged, records = examples.ragged, labeled.train
    assert len(examples) == 2 * len(records) and examples.group == 2 and not ragged.segments.any()
    texts = [text for record in records for text in (record["sentence"], record["other"])]
    for index, ids in enumerate(tokenizer.encode(texts)):
        framed = [tokenizer.cls_id, *ids[: T // 2 - 2], tokenizer.sep_id]
        assert ragged.tokens[ragged.offsets[index] : ragged.offsets[index + 1]].tolist() == framed
    assert ragged.labels["side"].tolist() == [0, 1] * len(records)
    np.testing.assert_allclose(ragged.labels["pair_label"], np.repeat([record["score"] for record in records], 2))
    assert examples.record_of.tolist() == np.repeat(np.arange(len(records)), 2).tolist()


def test_a_pair_never_straddles_rows(files, store):
    labeled = source(files, store)
    plan = labeled.plan(Spec("train", labeled.format, T, seed=0, row_examples=5), ())
    pairs = plan.rows_RN.reshape(len(plan.rows_RN), -1, 2)
    assert pairs.shape[1] == 2, "two pairs at most are five examples at most"
    assert sorted(plan.rows_RN[plan.rows_RN >= 0]) == list(range(2 * len(labeled.train)))
    firsts = pairs[..., 0][pairs[..., 0] >= 0]
    assert (firsts % 2 == 0).all() and (pairs[..., 1][pairs[..., 0] >= 0] == firsts + 1).all()
    assert (pairs[..., 1][pairs[..., 0] < 0] == -1).all()
    lengths = plan.examples.lengths()
    assert max(lengths[row[row >= 0]].sum() for row in plan.rows_RN) <= T


def test_long_texts_are_cut_to_half_a_row(files, store):
    labeled = source(files, store)
    examples = labeled.examples("train", 16, ())
    assert examples.lengths().max() == 8 and examples.notes["cut to 8 tokens"] > 0
    labeled.plan(Spec("train", labeled.format, 16, seed=0), ())


def test_pairs_need_no_label(files, store):
    labeled = source(files, store, label="")
    assert labeled.classes == () and labeled.format.labels == ("side",)
    assert set(labeled.examples("train", T, ()).ragged.labels) == {"side"}
    Task(EmbeddingContrastive(), labeled.format)
    with pytest.raises(UserError, match="embedding_regression learns the label pair_label, .* name its column in exam"):
        Task(EmbeddingRegression(), labeled.format)


def test_a_cross_encoder_refuses_siamese_pairs():
    with pytest.raises(UserError, match="which examples.kind=siamese_pairs does not have; use examples.kind=labeled_"):
        Task(Classification(), SiamesePairs())


@pytest.mark.parametrize(
    "record, choices, complaint",
    [
        ({"sentence": "a", "score": 1}, {}, "dev.jsonl:1 has no field 'other'"),
        ({"sentence": "a", "other": " ", "score": 1}, {}, "dev.jsonl:1 has no text in 'other'"),
        ({"sentence": "a", "other": "", "score": 1}, {"label": ""}, "dev.jsonl:1 has no text in 'other'"),
        (
            {"sentence": "a", "other": "b", "score": "high"},
            {},
            "dev.jsonl:1 has the label 'high', which is not a number",
        ),
    ],
)
def test_bad_records_are_refused(files, store, tmp_path, record, choices, complaint):
    broken = tmp_path / "dev.jsonl"
    broken.write_text(json.dumps(record) + "\n")
    with pytest.raises(UserError, match=complaint):
        source((files[0], broken), store, **choices).examples("heldout", T, ())


def test_a_missing_column_is_refused():
    with pytest.raises(UserError, match="examples.pair is empty; name the column of the second text"):
        SiamesePairs(pair="")
