"""Examples of pairs: labels and their shares, coverage of the corpus, and partners of random pairs."""

import hashlib
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bertjax.data import random
from bertjax.data.examples import Vocabulary
from bertjax.data.formats import partners
from bertjax.data.formats.pairs import DISTANT, NEXT, PREVIOUS, RANDOM, PairExamples, PairFormat
from bertjax.data.formats.segments import SegmentPairs
from bertjax.data.formats.sentence_pairs import SentenceDistance, SentenceOrder, SentencePairs, SentenceStructure
from tests.data.formats import splits
from tests.data.formats.splits import document_of, made, split_of

FORMATS = [SegmentPairs, SentencePairs, SentenceOrder, SentenceStructure, SentenceDistance]
every_format = pytest.mark.parametrize("examples_class", FORMATS)


@pytest.fixture(scope="module")
def large() -> SimpleNamespace:
    return splits.large()


def with_two_sentences(documents: list[list[int]]) -> list[list[int]]:
    """A corpus that all formats can pair."""
    return documents + [[3, 4]]


@every_format
@given(
    splits.documents.map(with_two_sentences),
    st.integers(5, 70),
    st.integers(0, 2**40),
    st.sampled_from(["random_end", "outer_ends"]),
)
@settings(max_examples=100, deadline=None)
def test_pairs_match_their_label_and_every_token_is_accounted_for(
    examples_class: type[PairFormat], documents, seq_len, seed, trim
):
    assume(trim == "random_end" or PREVIOUS not in examples_class.relations)
    split, examples = split_of(documents), examples_class(trim=trim)
    block = made(examples, split, seq_len, seed)
    a_start, a_stop, b_start, b_stop, label = block.ranges.T
    assert block.ranges.dtype == np.int64 and len(block.ranges) > 0
    assert (a_stop > a_start).all() and (b_stop > b_start).all()
    assert (a_stop - a_start + b_stop - b_start <= seq_len - 3).all()

    for start, stop in ((a_start, a_stop), (b_start, b_stop)):
        np.testing.assert_array_equal(document_of(split, start), document_of(split, stop - 1))
    relation = np.array(examples.relations)[label]
    elsewhere = document_of(split, a_start) != document_of(split, b_start)
    np.testing.assert_array_equal(elsewhere, relation == RANDOM)
    assert (b_start >= a_stop)[relation == NEXT].all() and (a_start >= b_stop)[relation == PREVIOUS].all()
    if trim == "outer_ends":
        np.testing.assert_array_equal(a_stop[relation == NEXT], b_start[relation == NEXT])

    for distant in block.ranges[relation == DISTANT]:
        a_first, a_last, b_first, b_last = np.searchsorted(split.sentences, distant[:4] - [0, 1, 0, 1], side="right")
        assert a_last + 1 < b_first or b_last + 1 < a_first  # a sentence or more in between

    times = np.zeros(len(split.tokens), int)
    taken = np.isin(relation, [RANDOM, DISTANT])
    for *ranges, _ in block.ranges[~taken]:
        times[ranges[0] : ranges[1]] += 1
        times[ranges[2] : ranges[3]] += 1
    for start, stop, *_ in block.ranges[taken]:
        times[start:stop] += 1
    assert times.max() == 1
    assert block.lost_tokens == np.sum(times == 0)
    assert block.repeated_tokens == np.sum((b_stop - b_start)[taken])


@given(
    st.sampled_from(FORMATS),
    splits.documents.map(with_two_sentences),
    st.integers(5, 70),
    st.integers(0, 9),
    st.integers(1, 30),
)
@settings(max_examples=150, deadline=None)
def test_the_size_of_blocks_changes_nothing(examples_class, documents, seq_len, seed, at_once):
    split = split_of(documents)
    expected = made(examples_class(), split, seq_len, seed)
    splits.assert_same(made(examples_class(), split, seq_len, seed, at_once), expected)


@every_format
def test_a_restricted_split_uses_only_its_documents(examples_class, large):
    split = splits.restricted(large, 100, 150)
    begin, end = split.sentences[split.documents[[0, -1]]]
    block, other = (made(examples_class(), split, 64, seed) for seed in (0, 1))
    assert len(other.ranges) != len(block.ranges) or (other.ranges != block.ranges).any(), "another seed"
    assert (block.ranges[:, :4] >= begin).all() and (block.ranges[:, :4] <= end).all()
    length = (block.ranges[:, :4] @ [-1, 1, -1, 1]).sum()
    assert length == end - begin - block.lost_tokens + block.repeated_tokens


@pytest.mark.parametrize(
    ("examples", "shares"),
    [
        (SegmentPairs(), (1 / 2, 1 / 2)),
        (SegmentPairs(random_next=0.2), (0.8, 0.2)),
        (SentencePairs(), (1 / 2, 1 / 2)),
        (SentenceOrder(), (1 / 2, 1 / 2)),
        (SentenceStructure(), (1 / 3, 1 / 3, 1 / 3)),
        (SentenceDistance(), (1 / 3, 1 / 3, 1 / 3)),
    ],
)
def test_labels_have_their_shares(examples, shares):
    """In long documents of short sentences, no chunk is a single sentence because its document ended."""
    labels = made(examples, split_of([[5] * 4000] * 10), 128).ranges[:, 4]
    counts = np.bincount(labels)
    deviation = np.sqrt(len(labels) * np.array(shares) * (1 - np.array(shares)))
    assert (np.abs(counts - len(labels) * np.array(shares)) < 4 * deviation).all()


def test_sentence_pairs_are_single_sentences(large):
    ranges = made(SentencePairs(), large, 10_000).ranges
    for start, stop in (ranges[:, :2].T, ranges[:, 2:4].T):
        first = np.searchsorted(large.sentences, start)
        np.testing.assert_array_equal(large.sentences[first], start)
        np.testing.assert_array_equal(large.sentences[first + 1], stop)
    follows = ranges[:, 4] == 0
    np.testing.assert_array_equal(ranges[follows, 1], ranges[follows, 2])


def test_documents_of_one_sentence_and_sentences_as_long_as_a_row():
    split = split_of([[7], [8], [5, 6], [9]])
    order = made(SentenceOrder(), split, 64)
    assert np.sort(order.ranges[:, :4]).tolist() == [[15, 20, 20, 26]]
    assert order.lost_tokens == 7 + 8 + 9
    for examples_class in (SegmentPairs, SentenceStructure):
        pairs = made(examples_class(), split, 64)
        single = np.isin(pairs.ranges[:, 0], [0, 7, 26])
        assert single.sum() == 3 and pairs.lost_tokens == 0
        assert (np.array(examples_class.relations)[pairs.ranges[single, 4]] == RANDOM).all()
    split = split_of([[100] * 1000] * 2)
    order = made(SentenceOrder(), split, 64).ranges
    assert len(order) == 1000 and set(order[:, 4]) == {0, 1}
    structure = made(SentenceStructure(), split, 64).ranges
    assert np.bincount(structure[:, 4]) / len(structure) == pytest.approx([1 / 3] * 3, abs=0.05)


@pytest.fixture(scope="module", params=FORMATS)
def examples(request, store, tmp_path_factory) -> PairExamples:
    path = tmp_path_factory.mktemp("plan") / "ranges.npy"
    np.save(path, made(request.param(), store.split("train"), 48).ranges)
    return request.param().open(store, "train", path)


def test_taken_examples_are_cls_a_sep_b_sep(store, examples):
    tokens, vocabulary = store.split("train").tokens, Vocabulary.of(store.tokenizer)
    indices = np.random.default_rng(0).integers(0, len(examples), 50)
    ragged = examples.take(indices)
    ranges = np.load(examples.ranges)[indices]
    assert ragged.tokens.dtype == ragged.segments.dtype == np.int32 and ragged.offsets.dtype == np.int64
    (label,) = ragged.labels.values()
    for m, (a_start, a_stop, b_start, b_stop, expected) in enumerate(ranges):
        a, b = tokens[a_start:a_stop].tolist(), tokens[b_start:b_stop].tolist()
        taken = slice(ragged.offsets[m], ragged.offsets[m + 1])
        cls, sep = vocabulary.cls_id, vocabulary.sep_id
        assert ragged.tokens[taken].tolist() == [cls, *a, sep, *b, sep]
        assert ragged.segments[taken].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert label[m] == expected
    np.testing.assert_array_equal(ragged.special, np.isin(ragged.tokens, vocabulary.special_ids))
    np.testing.assert_array_equal(ragged.ids, indices)
    np.testing.assert_array_equal(ragged.lengths, examples.lengths()[indices])
    ragged = examples.take(np.arange(len(examples)))
    np.testing.assert_array_equal(examples.label_counts(), np.bincount(ragged.labels[examples.label]))


def test_pickles_by_path_even_after_use(examples):
    assert examples.take(np.array([], np.int64)).offsets.tolist() == [0]
    examples.take(np.arange(5))
    copied = pickle.loads(pickled := pickle.dumps(examples))
    assert len(pickled) < 20_000
    np.testing.assert_array_equal(copied.take(np.arange(5)).tokens, examples.take(np.arange(5)).tokens)


def test_coins_are_those_of_one_after_the_other(monkeypatch):
    monkeypatch.setattr(partners, "WORDS_AT_ONCE", 7)
    tosses = np.array([0, 1, 31, 32, 33, 0, 1000, 64])
    keys = np.arange(len(tosses)) * 3
    heads = partners._heads(5, "pairs/trim_a", keys, tosses)
    for pair, count in enumerate(tosses):
        words = random.bits(5, "pairs/trim_a", 0, keys[pair], np.arange(-(-count // 32)))
        coins = [int(word) >> place & 1 for word in words for place in range(32)][:count]
        assert heads[pair] == sum(coins)


@pytest.mark.parametrize("examples", [SegmentPairs(), SentenceOrder(), SentencePairs()], ids=lambda e: e.kind)
def test_one_long_line_costs_as_much_as_its_tokens(monkeypatch, examples):
    """A log or a table of 1 MB is a line without a full stop; the other pairs must not pay for it."""
    drawn = []

    def bits(*arguments):
        words = random.bits(*arguments)
        drawn.append(words.size)
        return words

    monkeypatch.setattr(partners, "bits", bits)
    sizes = [[20] * 12 for _ in range(300)]
    made(examples, split_of(sizes), 128)
    without = sum(drawn)
    drawn.clear()
    made(examples, split_of([*sizes[:150], [20, 200_000, 20], *sizes[150:]]), 128)
    assert sum(drawn) <= without + 10 * 200_000 / 32


A_START, A_STOP, B_START, B_STOP, IS_RANDOM = range(5)


def segment_ranges(*args) -> np.ndarray:
    return splits.made(*args).ranges


def test_trimming_at_random_ends_leaves_b_in_the_text_after_a(large):
    """Without trimming A and B are adjacent; a trim of r tokens separates them by at most r."""
    ranges = segment_ranges(SegmentPairs(trim="random_end"), large, 128, 0)
    follows = ranges[ranges[:, IS_RANDOM] == 0]
    gap = follows[:, B_START] - follows[:, A_STOP]
    assert (gap >= 0).all() and (gap > 0).any()
    untrimmed = follows[:, B_STOP] - follows[:, A_START] < 125
    assert (gap[untrimmed] == 0).all()


def test_both_trims_keep_the_same_lengths_and_coins_are_fair(large):
    outer, ends = (segment_ranges(SegmentPairs(trim=trim), large, 128, 0) for trim in ("outer_ends", "random_end"))
    for start, stop in ((A_START, A_STOP), (B_START, B_STOP)):
        np.testing.assert_array_equal(outer[:, stop] - outer[:, start], ends[:, stop] - ends[:, start])
    cut = np.random.default_rng(0).integers(100, 200, 2_000)
    split = split_of([[100, length] for length in cut])
    trimmed = segment_ranges(SegmentPairs(short_seq_prob=0, random_next=0), split, 128, 0)
    assert len(trimmed) == 2_000
    b_front = trimmed[:, B_START] - split.sentences[1::2]
    share = b_front.sum() / (cut - (trimmed[:, B_STOP] - trimmed[:, B_START])).sum()
    assert share == pytest.approx(0.5, abs=0.01)
    assert b_front.std() > 3  # coins of their own, not one for the whole trim nor an even split


def test_the_partner_is_any_other_document():
    ranges = segment_ranges(SegmentPairs(random_next=1.0), split_of([[30] * 600] * 4), 64, 3)
    length = 30 * 600
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (ranges[:, A_START] // length, ranges[:, B_START] // length), 1)
    np.testing.assert_array_equal(pairs.diagonal(), 0)
    assert (pairs[~np.eye(4, dtype=bool)] > pairs.sum() / 12 * 0.7).all()


def test_golden_plan():
    split = split_of([[5, 9, 2, 7], [4, 4, 8], [6, 3]])
    assert segment_ranges(SegmentPairs(), split, 16, 42).tolist() == [
        [0, 5, 23, 31, 1],
        [8, 15, 16, 22, 0],
        [23, 27, 28, 37, 0],
        [39, 45, 16, 23, 1],
        [45, 48, 14, 23, 1],
    ]


@pytest.mark.parametrize(
    ("choices", "seq_len", "seed", "digest"),
    [
        ({}, 128, 0, "55e0817e746772d7"),
        ({"trim": "outer_ends", "short_seq_prob": 0.3, "random_next": 0.4}, 512, 3, "0af887a3f1c1ebd2"),
    ],
)
def test_golden_ranges(large, choices, seq_len, seed, digest):
    """A run that resumes after an update must see the same pairs."""
    ranges = segment_ranges(SegmentPairs(**choices), large, seq_len, seed)
    assert hashlib.sha256(ranges.tobytes()).hexdigest()[:16] == digest
