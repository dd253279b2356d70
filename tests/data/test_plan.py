"""Plans: fingerprints, damaged files, concurrent processes, and counts."""

import dataclasses
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from bertjax.data import coverage
from bertjax.data import plan as plan_module
from bertjax.data.config import DataConfig
from bertjax.data.coverage import check_documents, check_labels, label_shares, unread_share
from bertjax.data.formats.pairs import SegmentPairs, SentenceOrder
from bertjax.data.formats.runs import DocSentences
from bertjax.data.plan import Spec, open_or_make
from bertjax.data.preparation.prepare import prepare
from bertjax.data.store import TokenStore
from bertjax.data.tokenizer_config import TokenizerConfig
from bertjax.runtime.errors import UserError
from tests.data.formats.splits import split_of

TRAIN, HELDOUT = (Spec(split, SegmentPairs(), seq_len=32, seed=0) for split in ("train", "heldout"))


@pytest.fixture
def own_store(store, tmp_path) -> TokenStore:
    """A copy of the store that a test may harm."""
    shutil.copytree(store.path, tmp_path / "store", ignore=shutil.ignore_patterns("plans"))
    return TokenStore.open(tmp_path / "store")


def test_everything_that_decides_the_plan_is_in_its_fingerprint(own_store):
    changes = [
        {},
        {"split": "heldout"},
        {"examples": SegmentPairs(trim="outer_ends")},
        {"seq_len": 33},
        {"seed": 1},
        {"row_examples": 1},
        {"number": 1},
    ]
    plans = [open_or_make(own_store, dataclasses.replace(TRAIN, **change)) for change in changes]
    assert len({plan.fingerprint for plan in plans}) == len({plan.path for plan in plans}) == len(changes)


def test_drafts_of_killed_processes_are_removed(own_store):
    path = open_or_make(own_store, TRAIN).path
    draft = path.with_name(f".{path.name}.0123456789ab.draft")
    draft.mkdir()
    (path / "plan.json").unlink()
    open_or_make(own_store, TRAIN)
    assert not draft.exists()


def test_a_store_that_cannot_be_written(own_store):
    (own_store.path / "plans").write_text("in the way")
    with pytest.raises(
        UserError, match="cannot write the plan .*; make the store writable or choose another data.store"
    ):
        open_or_make(own_store, TRAIN)


def test_packing_in_blocks_keeps_every_example(own_store, monkeypatch):
    whole = open_or_make(own_store, TRAIN)
    monkeypatch.setattr(plan_module, "PACKED_AT_ONCE", 50)
    blocks = open_or_make(own_store, dataclasses.replace(TRAIN, row_examples=5))
    assert whole.counts.examples > 200
    rows_RN = blocks.rows_RN
    np.testing.assert_array_equal(np.sort(rows_RN[rows_RN >= 0]), np.arange(whole.counts.examples))
    used = rows_RN.max(axis=1) // 50
    assert (np.diff(used) >= 0).all() and used[-1] == (whole.counts.examples - 1) // 50
    lengths = np.where(rows_RN >= 0, blocks.examples.lengths()[rows_RN], 0)
    assert lengths.sum(axis=1).max() <= 32


@pytest.fixture
def store_of(tmp_path):
    """store_of(documents) -> the store of a corpus with these lines of text in each document."""

    def make(documents):
        (tmp_path / "corpus.txt").write_text("\n\n".join("\n".join(lines) for lines in documents))
        tokenizer = TokenizerConfig(kind="char", vocab_size=300)
        return prepare(DataConfig(str(tmp_path / "corpus.txt"), tokenizer=tokenizer, store=str(tmp_path), workers=0))

    return make


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
    with pytest.raises(UserError, match="all 500 training examples the label is_random=1"):
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
