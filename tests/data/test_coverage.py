"""Corpora that pairs of sentences cannot learn from are refused, and text that no plan reads is counted."""

from types import SimpleNamespace

import numpy as np
import pytest

from bertjax.config.config import from_dict
from bertjax.data import coverage
from bertjax.data.config import DataConfig
from bertjax.data.coverage import check_documents, check_labels, label_shares, unread_share
from bertjax.data.formats.runs import DocSentences
from bertjax.data.formats.segments import SegmentPairs
from bertjax.data.formats.sentence_pairs import SentenceOrder
from bertjax.data.plan import Spec, open_or_make
from bertjax.data.preparation.prepare import prepare
from bertjax.data.tokenizer_config import TokenizerConfig
from bertjax.runtime.errors import UserError
from bertjax.training.feeds import Feeds
from tests.data.formats.splits import split_of


@pytest.fixture
def store_of(tmp_path):
    """store_of(documents) -> the store of a corpus with these lines of text in each document."""

    def make(documents):
        (tmp_path / "corpus.txt").write_text("\n\n".join("\n".join(lines) for lines in documents))
        tokenizer = TokenizerConfig(kind="char", vocab_size=300)
        return prepare(DataConfig(str(tmp_path / "corpus.txt"), tokenizer=tokenizer, store=str(tmp_path), workers=0))

    return make


def feeds(store, objective="bert", examples="segment_pairs") -> Feeds:
    config = {
        "stages": [{"steps": 1, "seq_len": 32, "batch": 2}],
        "tasks": {"bert": {"objective": {"kind": objective}, "examples": {"kind": examples}}},
        "model": {"layers": 1, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 32},
        "optimizer": {"warmup_steps": 0},
    }
    return Feeds(from_dict(config), store)


@pytest.mark.parametrize(
    "objective, examples",
    [("bert", "segment_pairs"), ("sentence_order", "sentence_order"), ("sentence_reordering", "sentence_reordering")],
)
def test_documents_of_one_sentence_are_refused_for_labels_of_pairs(store_of, objective, examples):
    store = store_of([f"word {i} of {i * 7}."] for i in range(60))
    with pytest.raises(UserError, match=f"examples.kind={examples} .*100% of the documents.*splitter=line.*=mlm"):
        feeds(store, objective, examples).plan()
    assert feeds(store, "mlm", "doc_sentences").train


def test_half_of_the_documents_may_have_one_sentence():
    split = split_of([[3], [3, 4], [3], [3, 4]])
    split.name = "train"
    check_documents(split, SegmentPairs(), "bert")
    split = split_of([[3], [3, 4], [3]])
    split.name = "train"
    with pytest.raises(UserError, match="67% of the documents of the train split"):
        check_documents(split, SegmentPairs(), "bert")


def plan_of(labels, segments=(), lost=1) -> SimpleNamespace:
    class Examples:
        def __len__(self):
            return len(labels)

        def label_counts(self, part=slice(None)):
            return np.bincount(labels[part])

        def segments(self, part=slice(None)):
            return np.array(segments)[part].reshape(-1, 2)

    return SimpleNamespace(examples=Examples(), counts=SimpleNamespace(lost_tokens=lost, split_tokens=100))


def test_constant_labels_are_refused(monkeypatch):
    with pytest.raises(UserError, match="all of 500 training examples the label is_random=1"):
        check_labels(plan_of(np.ones(500, int)), SegmentPairs(), "bert")
    check_labels(plan_of(np.ones(20, int)), SegmentPairs(), "bert")  # may be by chance
    check_labels(plan_of(np.arange(500) % 2), SegmentPairs(), "bert")
    monkeypatch.setattr(coverage, "_SAMPLE", 128)
    shares = label_shares(plan_of(np.repeat([0, 1], [30_000, 10_000])))
    np.testing.assert_allclose(shares, [0.75, 0.25], atol=0.02)


def test_unread_text_is_what_no_plan_has(store_of):
    store = store_of([["a" * (20 + i % 90) + "." for i in range(n, n + 12)] for n in range(0, 400, 8)])
    for kind in (SegmentPairs(), SentenceOrder(), SegmentPairs(fewest=2, trim="outer_ends")):
        plans = [open_or_make(store, Spec("train", kind, 32, seed=0, number=number)) for number in range(3)]
        for some in (plans[:1], plans):
            read = np.zeros(len(store.split("train").tokens), bool)
            for plan in some:
                for start, stop in plan.examples.segments():
                    read[start:stop] = True
            inside = np.flatnonzero(read)
            assert unread_share(some) == pytest.approx(1 - read[inside[0] : inside[-1] + 1].mean())
        assert unread_share(plans) < unread_share(plans[:1]) <= plans[0].counts.lost_tokens / len(read) + 0.02
    assert unread_share([open_or_make(store, Spec("train", DocSentences(), 32, seed=0))]) == 0.0
