"""No label of a pair can be read off the shape of its segments."""

import itertools

import numpy as np
import pytest

from bertjax.data.formats.pairs import PairFormat
from bertjax.data.formats.segments import SegmentPairs
from bertjax.data.formats.sentence_pairs import SentenceDistance, SentenceOrder, SentencePairs, SentenceStructure
from tests.data.formats.splits import made, split_of

FORMATS = [
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


def test_a_label_that_lengths_give_away_is_noticed(book):
    """The order of the halves of a pair whose odd token stays with the first half of the text."""
    ranges = made(SentenceOrder(), book, 16).ranges
    lengths = ranges[:, 1] - ranges[:, 0], ranges[:, 3] - ranges[:, 2]
    label = np.where(lengths[0] == lengths[1] + 1, 0, np.where(lengths[1] == lengths[0] + 1, 1, ranges[:, 4]))
    assert advantage(shapes(book, ranges), label) > 10


@pytest.mark.parametrize("examples, seq_len", [*zip(FORMATS * 2, itertools.cycle([16, 512, 128, 32]))], ids=str)
def test_a_table_over_shapes_does_not_beat_the_prior(examples: PairFormat, seq_len, book):
    ranges = made(examples, book, seq_len).ranges
    assert advantage(shapes(book, ranges), ranges[:, 4]) < 4


def test_a_random_partner_is_not_cut_short_by_its_document():
    """In documents of 40 sentences of 10 tokens, A from the first half of its document and its random B fill a row."""
    ranges = made(SentenceStructure(short_seq_prob=0.0), split_of([[10] * 40] * 400), 128).ranges
    a_start, a_stop, b_start, b_stop, label = ranges[(ranges[:, 0] % 400 < 200) & (ranges[:, 4] == 2)].T
    assert len(label) > 100 and (a_stop - a_start + b_stop - b_start == 125).all()
