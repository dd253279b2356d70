"""Two examples per record in one row: pairs that are encoded separately, and texts that are their own pair."""

import numpy as np
import pytest

from bertjax.config.config import Task
from bertjax.data.labeled.siamese import RepeatedText, SiamesePairs
from bertjax.data.labeled.source import LabeledSource
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


def test_a_record_is_two_examples_and_needs_no_label(files, store):
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
    labeled = source(files, store, label="")
    assert labeled.classes == () and labeled.format.labels == ("side",)
    assert set(labeled.examples("train", T, ()).ragged.labels) == {"side"}
    Task(EmbeddingContrastive(), labeled.format)
    with pytest.raises(UserError, match="embedding_regression learns the label pair_label, .* name its column in exam"):
        Task(EmbeddingRegression(), labeled.format)


TEXTS = ["abc de", "fgh", "ijklm"]


def test_each_text_is_its_own_pair_in_training(tmp_path, spelling):
    """From lines, or from a table whose labels are not read; held-out pairs have two texts and a score."""
    lines, table, heldout = (tmp_path / name for name in ("train.txt", "train.tsv", "dev.jsonl"))
    lines.write_text("abc de\n\nfgh\n  ijklm \n")
    table.write_text("sentence1\tlabel\n" + "".join(f"{text}\tyes\n" for text in TEXTS))
    heldout.write_text('{"sentence1": "abc", "sentence2": "de", "score": 2.5}\n')
    of_lines, of_table = (
        LabeledSource(RepeatedText(train=str(path), heldout=str(heldout)), spelling) for path in (lines, table)
    )
    examples = of_lines.examples("train", 32, ())
    ragged = examples.ragged
    np.testing.assert_array_equal(ragged.tokens, of_table.examples("train", 32, ()).ragged.tokens)
    assert len(examples) == 6 and examples.group == 2 and ragged.labels["side"].tolist() == [0, 1] * 3
    framed = [[spelling.cls_id, *ids, spelling.sep_id] for ids in spelling.encode(TEXTS) for _ in range(2)]
    assert [tokens.tolist() for tokens in np.split(ragged.tokens, ragged.offsets[1:-1])] == framed
    assert examples.record_of.tolist() == [0, 0, 1, 1, 2, 2]
    pair = of_lines.examples("heldout", 32, ()).ragged
    assert pair.lengths.tolist() == [5, 4] and pair.labels["pair_label"].tolist() == [2.5, 2.5]
    without = LabeledSource(RepeatedText(train=str(lines), heldout=str(lines), label=""), spelling)
    assert len(without.heldout) == 3 and "pair_label" not in without.examples("heldout", 32, ()).ragged.labels
