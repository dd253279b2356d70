"""Masking of single tokens: statistics, determinism, and independence from packing."""

import hashlib
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.batch import Draw, PlacedExamples, place
from bertjax.data.examples import Ragged
from bertjax.data.masking import (
    MASKINGS,
    SPAN_SHARES,
    BoundPhraseMasking,
    NgramMasking,
    SpanMasking,
    TokenMasking,
    UnitMasking,
    gather_masked,
    mask,
    words_of,
)
from bertjax.data.text.lexicon import Lexicon
from bertjax.runtime.errors import UserError
from tests.ragged import CLS, MASK, SEP, VOCABULARY, first_epoch, of, one_a_row, random
from tests.ragged import random as examples


@pytest.fixture(scope="module")
def million() -> PlacedExamples:
    return one_a_row(examples(np.full(8_000, 128), np.arange(8_000)))


def test_statistics_over_a_million_tokens(million):
    masked = mask(million, first_epoch(million.ragged), TokenMasking())
    originals, seen = million.ragged.tokens[masked.chosen], masked.tokens[masked.chosen]
    assert masked.tokens.dtype == np.int32
    assert not million.ragged.special[masked.chosen].any()
    np.testing.assert_array_equal(masked.tokens[~masked.chosen], million.ragged.tokens[~masked.chosen])
    assert masked.chosen.sum() / (~million.ragged.special).sum() == pytest.approx(0.15, abs=0.002)

    became_mask, kept = seen == MASK, seen == originals
    assert became_mask.mean() == pytest.approx(0.8, abs=0.005)
    assert kept.mean() == pytest.approx(0.1, abs=0.005)  # a random token is never the original: it would count here
    replacements = seen[~became_mask & ~kept]
    assert not VOCABULARY.is_special[replacements].any()
    counts = np.bincount(replacements, minlength=507)[7:]
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() == pytest.approx(499, abs=5 * np.sqrt(2 * 499))


@pytest.mark.parametrize(
    "kind, bad",
    [("tokens", {"rate": 0.0}), ("tokens", {"rate": 1.0}), ("tokens", {"mask": 0.8, "random": 0.3})]
    + [("tokens", {"static": -1}), ("ngrams", {"longest": 0})]
    + [("phrases", {"lexicon": ""}), ("phrases", {"lexicon_size": 0})],
)
def test_bad_values_name_their_field(kind, bad):
    with pytest.raises(UserError, match=f"masking.{next(iter(bad))}( is empty|=.*{next(iter(bad.values()))})"):
        MASKINGS.class_of(kind)(**bad)


def test_masks_are_equal_to_recorded_ones():
    """A run that resumes after an update must see the same masks."""
    lengths, ids = np.arange(5, 45), np.arange(40) * 3
    tokens = 7 + np.arange(lengths.sum(), dtype=np.int32) * 37 % 500
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens[offsets[:-1]], tokens[offsets[1:] - 1] = CLS, SEP
    ragged = Ragged(tokens, 0 * tokens, VOCABULARY.is_special[tokens], offsets, {}, ids)
    draw = Draw(7, np.arange(40) % 5)
    digests = []
    for masking in (TokenMasking(), TokenMasking(rate=0.4, mask=0.5, random=0.4, static=2)):
        masked = mask(one_a_row(ragged), draw, masking)
        digests.append(hashlib.sha256(masked.tokens.tobytes() + masked.chosen.tobytes()).hexdigest()[:16])
    assert digests == ["6d751b9580cb8486", "abf7c40b9f0ffe43"]


NO_PHRASES = Lexicon({}, "")


def make(kind: str, **choices) -> UnitMasking:
    if kind == "phrases":
        return BoundPhraseMasking(**choices, phrases=NO_PHRASES)
    if kind == "ngrams of 5":
        return NgramMasking(**choices, longest=5)
    return MASKINGS.class_of(kind)(**choices)


UNITS = ("words", "ngrams", "ngrams of 5", "spans", "phrases")
each_kind = pytest.mark.parametrize("kind", UNITS)


@pytest.fixture(scope="module")
def long_million() -> PlacedExamples:
    """Long examples whose share is not rounded: 0.15 * 500 is an integer."""
    return one_a_row(random(np.full(2_000, 502), np.arange(2_000)))


def chi_square(counts: np.ndarray, shares: np.ndarray) -> float:
    expected = counts.sum() * shares
    return ((counts - expected) ** 2 / expected).sum()


def limit(degrees: int) -> float:
    """Five standard deviations above the mean of the chi-square distribution."""
    return degrees + 5 * np.sqrt(2 * degrees)


def unit_of_tokens(masking: UnitMasking, placed: PlacedExamples, draw: Draw) -> np.ndarray:
    """The unit of every token, -1 for special tokens; int64 [n]."""
    words = words_of(placed)
    starts = words.starts[masking.units(words, placed, draw)]
    units = np.searchsorted(starts, np.arange(len(placed.ragged.tokens)), side="right") - 1
    return np.where(placed.ragged.special, -1, units)


@pytest.mark.parametrize(
    "kind, rate, share_masked, share_random",
    [*((kind, 0.15, 0.8, 0.1) for kind in UNITS), ("spans", 0.4, 0.5, 0.5), ("words", 0.05, 0.0, 0.3)],
)
def test_the_rate_and_the_replacement_of_chosen_tokens(kind, rate, share_masked, share_random, long_million):
    masking = make(kind, rate=rate, mask=share_masked, random=share_random)
    masked = mask(long_million, first_epoch(long_million.ragged), masking)
    ordinary = ~long_million.ragged.special
    assert ordinary.sum() == 1_000_000 and not masked.chosen[~ordinary].any()
    assert masked.chosen.sum() / 1_000_000 == pytest.approx(rate, rel=0.01)
    np.testing.assert_array_equal(masked.tokens[~masked.chosen], long_million.ragged.tokens[~masked.chosen])
    originals, seen = long_million.ragged.tokens[masked.chosen], masked.tokens[masked.chosen]
    assert not VOCABULARY.is_special[seen[seen != MASK]].any()
    assert (seen == MASK).mean() == pytest.approx(share_masked, abs=0.015)
    assert (seen == originals).mean() == pytest.approx(1 - share_masked - share_random, abs=0.015)


@each_kind
def test_units_are_chosen_whole_and_replaced_together_or_token_by_token(kind, long_million):
    masking, draw = make(kind), first_epoch(long_million.ragged)
    masked = mask(long_million, draw, masking)
    units = unit_of_tokens(masking, long_million, draw)
    sizes = np.bincount(units[units >= 0])
    chosen = np.bincount(units[masked.chosen], minlength=len(sizes))
    assert set(np.unique(chosen / sizes)) == {0.0, 1.0}
    hidden = np.bincount(units[masked.chosen & (masked.tokens == MASK)], minlength=len(sizes))
    pairs = (chosen == 2) & (sizes == 2)
    both, one = (hidden[pairs] == 2).mean(), (hidden[pairs] == 1).mean()
    expected = (0.8, 0.0) if masking.one_decision else (0.64, 0.32)
    assert both == pytest.approx(expected[0], abs=0.02) and one == pytest.approx(expected[1], abs=0.02)


@pytest.mark.parametrize(
    "masking, shares",
    [
        (NgramMasking(), np.array([6, 3, 2]) / 11),
        (NgramMasking(longest=5), np.array([60, 30, 20, 15, 12]) / 137),
        (SpanMasking(), SPAN_SHARES),
    ],
)
def test_lengths_follow_the_paper_if_the_segment_has_room(masking, shares, long_million):
    """The lengths of all units and of the chosen units follow it, since the choice must not depend on the length."""
    draw = first_epoch(long_million.ragged)
    words = words_of(long_million)
    first = masking.units(words, long_million, draw)
    lengths = np.diff(first, append=len(words.starts))
    has_room = words.room[first] >= len(shares)
    chosen = mask(long_million, draw, masking).chosen[words.starts[first]]
    for which in (has_room, has_room & chosen):
        counts = np.bincount(lengths[which], minlength=len(shares) + 1)[1:]
        assert len(counts) == len(shares) and counts.min() > 100
        assert chi_square(counts, shares) < limit(len(shares) - 1)
    assert (lengths <= words.room[first]).all()


@each_kind
def test_no_token_is_more_likely_than_another(kind):
    """Also in short examples of one long and several short words, for which other rules favor the short ones."""
    text = np.array([CLS, 10, 310, 311, 312, 313, 314, 11, 12, 13, 14, SEP])
    ragged = of([text] * 20_000, np.arange(20_000))
    chosen = mask(one_a_row(ragged), first_epoch(ragged), make(kind, rate=0.3)).chosen.reshape(20_000, -1)
    assert not chosen[:, [0, -1]].any()
    deviation = np.sqrt(0.3 * 0.7 / 20_000)
    assert np.abs(chosen[:, 1:-1].mean(axis=0) - 0.3).max() < 5 * deviation


@given(st.sampled_from(("tokens", *UNITS)), st.permutations(range(12)), st.integers(1, 3), st.integers(1, 12))
@settings(max_examples=80, deadline=None)
def test_rows_and_the_other_examples_do_not_change_a_mask(kind, order, slots, count):
    ids, lengths = np.arange(12) * 7, np.arange(12) + 5
    ragged = random(lengths, ids)
    reference = mask(one_a_row(ragged), first_epoch(ragged), make(kind))
    expected = dict(zip(ids.tolist(), np.split(reference.tokens, ragged.offsets[1:-1]), strict=True))
    order = order[:count]
    packed = random(lengths[order], ids[order])
    rows_BN = np.full((len(order), slots), -1)
    rows_BN.ravel()[: len(order)] = np.arange(len(order))
    masked = mask(place(packed, rows_BN, 60, VOCABULARY), first_epoch(packed), make(kind))
    for id, tokens in zip(packed.ids.tolist(), np.split(masked.tokens, packed.offsets[1:-1]), strict=True):
        np.testing.assert_array_equal(tokens, expected[id])


@pytest.mark.parametrize("kind", ["tokens", *UNITS])
def test_masks_depend_on_the_seed_and_repeat_after_d_epochs_and_only_then(kind):
    """In workers too, which receive a pickled masking."""
    placed, masking = one_a_row(random(np.full(50, 40), np.arange(50))), make(kind, static=3)
    again = pickle.loads(pickle.dumps(masking))
    masks = [mask(placed, Draw(0, np.full(50, epoch)), masking).tokens for epoch in range(7)]
    for epoch, tokens in enumerate(masks):
        assert [bool((tokens == other).all()) for other in masks] == [epoch % 3 == e % 3 for e in range(7)]
        np.testing.assert_array_equal(mask(placed, Draw(0, np.full(50, epoch)), again).tokens, tokens)
    a, b = (mask(placed, first_epoch(placed.ragged, seed), masking).chosen for seed in (0, 1))
    assert (a != b).mean() > 0.2


@pytest.mark.parametrize(
    "kind, seq_len, row_examples",
    [("words", 128, 1), ("ngrams", 128, 4), ("ngrams of 5", 512, 1), ("spans", 512, 8), ("phrases", 128, 4)],
)
def test_the_capacity_drops_less_than_half_a_percent(kind, seq_len, row_examples):
    masking, rows = make(kind), 200_000 // seq_len
    places = masking.capacity(seq_len, row_examples)
    assert places % 8 == 0 and 0.15 * seq_len <= places < 0.15 * seq_len + 10 * np.sqrt(row_examples) + 8
    count = rows * row_examples
    ragged = random(np.full(count, seq_len // row_examples), np.arange(count))
    placed = place(ragged, np.arange(count).reshape(rows, row_examples), seq_len, VOCABULARY)
    chosen = mask(placed, first_epoch(ragged), masking).chosen
    assert gather_masked(placed, chosen, places)["dropped_B"].sum() < 0.005 * chosen.sum()
    few, all_of_them = gather_masked(placed, chosen, 2), gather_masked(placed, chosen, seq_len)
    np.testing.assert_array_equal(few["positions_BK"], all_of_them["positions_BK"][:, :2])
