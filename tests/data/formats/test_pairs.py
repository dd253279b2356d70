"""Examples of pairs: labels and their shares, coverage of the corpus, and partners of random pairs."""

import hashlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bertjax.data.formats.pairs import (
    DISTANT,
    NEXT,
    PREVIOUS,
    RANDOM,
    PairExamples,
    PairFormat,
    SegmentPairs,
    SentenceDistance,
    SentenceOrder,
    SentencePairs,
    SentenceStructure,
)
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


@pytest.fixture(scope="module", params=FORMATS)
def examples(request, store, tmp_path_factory) -> PairExamples:
    path = tmp_path_factory.mktemp("plan") / "ranges.npy"
    np.save(path, made(request.param(), store.split("train"), 48).ranges)
    return request.param().open(store, "train", path)


def segment_ranges(*args) -> np.ndarray:
    return splits.made(*args).ranges


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


LABEL_LEAKS_FORMATS = [
    SegmentPairs(),
    SegmentPairs(trim="outer_ends"),
    SegmentPairs(fewest=2),
    SentencePairs(),
    SentencePairs(trim="outer_ends"),
    SentenceOrder(),
    SentenceStructure(),
    SentenceDistance(),
    SentenceDistance(trim="outer_ends"),
]


@pytest.fixture(scope="module")
def book():
    """Long documents whose sentences say nothing about each other: what a table learns, the format put there."""
    rng = np.random.default_rng(0)
    return split_of([(1 + rng.geometric(1 / 33, rng.geometric(1 / 100))).tolist() for _ in range(700)])


def shapes(split, ranges: np.ndarray) -> np.ndarray:
    """The shape of each pair as one number: both lengths, and which of the four ends are on a sentence border."""
    a_start, a_stop, b_start, b_stop, _ = ranges.T
    on_border = [np.isin(end, split.sentences) for end in (a_start, a_stop, b_start, b_stop)]
    columns = np.stack([a_stop - a_start, b_stop - b_start, *on_border], axis=1)
    return np.unique(columns, axis=0, return_inverse=True)[1].ravel()


def advantage(shape: np.ndarray, label: np.ndarray) -> float:
    """Return by how many standard errors a table over the shapes beats the most frequent label, on pairs that it has
    not seen. A cell of the table starts as ten pairs with the shares of all labels."""
    seen = np.random.default_rng(0).random(len(label)) < 0.5
    counts = np.bincount(label[seen])
    table = np.tile(10 * counts / counts.sum(), (shape.max() + 1, 1))
    np.add.at(table, (shape[seen], label[seen]), 1)
    right = table.argmax(axis=1)[shape[~seen]] == label[~seen]
    gain = right.astype(float) - (label[~seen] == counts.argmax())
    return gain.mean() / (gain.std() / np.sqrt(len(gain)) + 1e-9)


@pytest.mark.parametrize(
    "examples, seq_len", [*zip(LABEL_LEAKS_FORMATS * 2, itertools.cycle([16, 512, 128, 32]))], ids=str
)
def test_a_table_over_shapes_does_not_beat_the_prior(examples: PairFormat, seq_len, book):
    ranges = made(examples, book, seq_len).ranges
    assert advantage(shapes(book, ranges), ranges[:, 4]) < 4
