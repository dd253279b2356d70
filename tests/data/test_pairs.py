import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.examples import Vocabulary
from bertjax.data.pairs import SegmentPairExamples, SegmentPairs
from bertjax.errors import UserError

A_START, A_STOP, B_START, B_STOP, IS_RANDOM = range(5)


def split_of(documents: list[list[int]]) -> SimpleNamespace:
    """The offsets of a split whose documents have sentences of these lengths: all that a plan looks at."""
    sentences = np.cumsum([0, *(length for document in documents for length in document)])
    offsets = np.cumsum([0, *(len(document) for document in documents)])
    return SimpleNamespace(sentences=sentences, documents=offsets)


def document_of(split: SimpleNamespace, tokens: np.ndarray) -> np.ndarray:
    return np.searchsorted(split.sentences[split.documents], tokens, side="right") - 1


@pytest.fixture(scope="module")
def large() -> SimpleNamespace:
    rng = np.random.default_rng(0)
    return split_of([rng.geometric(1 / 20, rng.integers(1, 200)).tolist() for _ in range(300)])


documents = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=2, max_size=8)


@given(
    documents, st.integers(5, 70), st.integers(0, 2**40), st.sampled_from(["random_end", "outer_ends"]), st.floats(0, 1)
)
@settings(max_examples=200, deadline=None)
def test_every_pair_is_well_formed(documents, seq_len, seed, trim, short_seq_prob):
    split = split_of(documents)
    config = SegmentPairs(trim=trim, short_seq_prob=short_seq_prob)
    ranges = config.plan(split, seq_len, seed)
    a_start, a_stop, b_start, b_stop, is_random = ranges.T
    assert ranges.dtype == np.int64 and len(ranges) > 0
    assert (a_stop > a_start).all() and (b_stop > b_start).all()
    assert (a_stop - a_start + b_stop - b_start <= seq_len - 3).all()

    a_document, b_document = document_of(split, a_start), document_of(split, b_start)
    np.testing.assert_array_equal(a_document, document_of(split, a_stop - 1))
    np.testing.assert_array_equal(b_document, document_of(split, b_stop - 1))
    np.testing.assert_array_equal(a_document != b_document, is_random.astype(bool))
    np.testing.assert_array_equal(ranges, config.plan(split, seq_len, seed))


def test_consecutive_pairs_are_consecutive(large):
    ranges = SegmentPairs(trim="outer_ends").plan(large, 128, 0)
    follows = ranges[ranges[:, IS_RANDOM] == 0]
    assert len(follows) > 1_000
    np.testing.assert_array_equal(follows[:, A_STOP], follows[:, B_START])


def test_trimming_at_random_ends_leaves_b_in_what_follows_a(large):
    """Without trimming A and B adjoin; a trim of r tokens moves them apart by at most r."""
    ranges = SegmentPairs(trim="random_end").plan(large, 128, 0)
    follows = ranges[ranges[:, IS_RANDOM] == 0]
    gap = follows[:, B_START] - follows[:, A_STOP]
    assert (gap >= 0).all() and (gap > 0).any()
    untrimmed = follows[:, B_STOP] - follows[:, A_START] < 125
    assert (gap[untrimmed] == 0).all()


def test_both_trims_keep_the_same_lengths_and_coins_are_fair(large):
    outer, ends = (SegmentPairs(trim=trim).plan(large, 128, 0) for trim in ("outer_ends", "random_end"))
    for start, stop in ((A_START, A_STOP), (B_START, B_STOP)):
        np.testing.assert_array_equal(outer[:, stop] - outer[:, start], ends[:, stop] - ends[:, start])
    cut = np.random.default_rng(0).integers(100, 200, 2_000)
    split = split_of([[100, length] for length in cut])
    trimmed = SegmentPairs(short_seq_prob=0, random_next=0).plan(split, 128, 0)
    assert len(trimmed) == 2_000
    b_front = trimmed[:, B_START] - split.sentences[1::2]
    share = b_front.sum() / (cut - (trimmed[:, B_STOP] - trimmed[:, B_START])).sum()
    assert share == pytest.approx(0.5, abs=0.01)
    assert b_front.std() > 3  # coins of their own, not one for the whole trim nor an even split


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [((3, 4), (3, 4)), ((3, 20), (3, 7)), ((20, 3), (7, 3)), ((9, 8), (5, 5)), ((5, 6), (5, 5)), ((6, 5), (5, 5))],
)
@pytest.mark.parametrize("trim", ["random_end", "outer_ends"])
def test_the_longer_segment_gives_way(lengths, kept, trim):
    split = split_of([list(lengths)] * 2)
    first = SegmentPairs(short_seq_prob=0, random_next=0, trim=trim).plan(split, 13, 0)[0]
    assert (first[A_STOP] - first[A_START], first[B_STOP] - first[B_START]) == kept


def test_labels_are_even_where_chunks_have_two_sentences():
    split = split_of([[10] * 400] * 50)
    ranges = SegmentPairs().plan(split, 128, 0)
    assert ranges[:, IS_RANDOM].mean() == pytest.approx(0.5, abs=0.03)


def test_the_partner_is_any_other_document(large):
    ranges = SegmentPairs(random_next=1.0).plan(split_of([[30] * 600] * 4), 64, 3)
    length = 30 * 600
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (ranges[:, A_START] // length, ranges[:, B_START] // length), 1)
    np.testing.assert_array_equal(pairs.diagonal(), 0)
    assert (pairs[~np.eye(4, dtype=bool)] > pairs.sum() / 12 * 0.7).all()


def test_without_random_pairs_the_chunks_cover_the_text():
    split = split_of([[7, 4, 9, 3, 8, 2, 6, 5], [5, 5, 5, 5, 5, 5]])
    ranges = SegmentPairs(short_seq_prob=0.0, random_next=0.0, trim="outer_ends").plan(split, 200, 0)
    np.testing.assert_array_equal(ranges[:, [A_START, B_STOP]], [[0, 44], [44, 74]])


def test_the_unused_sentences_return_after_a_random_pair():
    split = split_of([[5] * 40] * 2)
    ranges = SegmentPairs(short_seq_prob=0.0, random_next=1.0).plan(split, 53, 1)
    first = ranges[ranges[:, A_START] < 200]
    np.testing.assert_array_equal(first[1:, A_START], first[:-1, A_STOP])
    assert first[0, A_START] == 0 and first[-1, A_STOP] == 200


def test_short_pairs_have_their_share():
    split = split_of([[1] * 40_000] * 2)
    lengths = SegmentPairs(short_seq_prob=0.3).plan(split, 103, 0)[:, :4] @ [-1, 1, -1, 1]
    assert (lengths < 100).mean() == pytest.approx(0.3 * 98 / 99, abs=0.03)


def test_golden_plan():
    split = split_of([[5, 9, 2, 7], [4, 4, 8], [6, 3]])
    assert SegmentPairs().plan(split, 16, 42).tolist() == [
        [0, 5, 23, 31, 1],
        [8, 15, 16, 22, 0],
        [23, 27, 28, 37, 0],
        [39, 45, 16, 23, 1],
        [45, 48, 14, 23, 1],
    ]


def test_fewer_than_two_documents():
    with pytest.raises(UserError, match="at least two documents and there is 1"):
        SegmentPairs().plan(split_of([[5, 5]]), 32, 0)


@pytest.mark.parametrize("bad", [{"kind": "pairs"}, {"trim": "front"}, {"short_seq_prob": 1.5}, {"random_next": -0.5}])
def test_bad_values_name_their_field(bad):
    with pytest.raises(UserError, match=f"examples.{next(iter(bad))}=.*{next(iter(bad.values()))}"):
        SegmentPairs(**bad)


def test_rows_too_short_for_a_pair():
    with pytest.raises(UserError, match="seq_len=4 cannot hold a sentence pair; use at least 5"):
        SegmentPairs().plan(split_of([[5], [5]]), 4, 0)


@pytest.fixture(scope="module")
def examples(store, tmp_path_factory) -> SegmentPairExamples:
    path = tmp_path_factory.mktemp("plan") / "ranges.npy"
    np.save(path, SegmentPairs().plan(store.split("train"), 48, 0))
    return SegmentPairs().open(store, "train", path)


def test_taken_examples_are_cls_a_sep_b_sep(store, examples):
    tokens, vocabulary = store.split("train").tokens, Vocabulary.of(store.tokenizer)
    indices = np.random.default_rng(0).integers(0, len(examples), 50)
    ragged = examples.take(indices)
    ranges = np.load(examples.ranges)[indices]
    assert ragged.tokens.dtype == ragged.segments.dtype == np.int32 and ragged.offsets.dtype == np.int64
    for m, (a_start, a_stop, b_start, b_stop, is_random) in enumerate(ranges):
        a, b = tokens[a_start:a_stop].tolist(), tokens[b_start:b_stop].tolist()
        taken = slice(ragged.offsets[m], ragged.offsets[m + 1])
        cls, sep = vocabulary.cls_id, vocabulary.sep_id
        assert ragged.tokens[taken].tolist() == [cls, *a, sep, *b, sep]
        assert ragged.segments[taken].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert ragged.labels["is_random"][m] == is_random
    np.testing.assert_array_equal(ragged.special, np.isin(ragged.tokens, vocabulary.special_ids))
    np.testing.assert_array_equal(ragged.ids, indices)
    np.testing.assert_array_equal(ragged.lengths, examples.lengths()[indices])


def test_nothing_taken_is_no_error(examples):
    ragged = examples.take(np.array([], np.int64))
    assert ragged.tokens.shape == ragged.ids.shape == (0,) and ragged.offsets.tolist() == [0]


def test_pickles_by_path_even_after_use(examples):
    examples.take(np.arange(5))
    copied = pickle.loads(pickled := pickle.dumps(examples))
    assert len(pickled) < 20_000
    np.testing.assert_array_equal(copied.take(np.arange(5)).tokens, examples.take(np.arange(5)).tokens)
    assert copied.random_share == examples.random_share
