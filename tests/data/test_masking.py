"""Masking of single tokens: statistics, determinism, and independence from packing."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.batch import Draw, PlacedExamples, place
from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.masking import KINDS, MASKINGS, TokenMasking, gather_masked, mask
from bertjax.runtime.errors import UserError
from tests.ragged import CLS, MASK, PAD, SEP, VOCABULARY, first_epoch, one_a_row
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


def test_a_random_token_is_always_another_one():
    few = Vocabulary(9, PAD, CLS, SEP, MASK, (0, 1, 2, 3, 4, 5, 6))
    tokens = np.tile([CLS, 7, 8, SEP], 500).astype(np.int32)
    ragged = Ragged(tokens, 0 * tokens, few.is_special[tokens], np.arange(501) * 4, {}, np.arange(500))
    placed = place(ragged, np.arange(500)[:, None], 4, few)
    masked = mask(placed, first_epoch(ragged), TokenMasking(rate=0.99, mask=0.0, random=1.0))
    np.testing.assert_array_equal(masked.tokens.reshape(500, 4), np.tile([CLS, 8, 7, SEP], (500, 1)))


@given(st.lists(st.integers(2, 60), min_size=1, max_size=20), st.floats(0.01, 0.99))
@settings(max_examples=40, deadline=None)
def test_every_example_has_exactly_its_share_of_predictions(lengths, rate):
    ragged = examples(np.array(lengths), np.arange(len(lengths)))
    masked = mask(one_a_row(ragged), first_epoch(ragged), TokenMasking(rate=rate))
    maskable = np.array(lengths) - 2
    counts = np.minimum(np.maximum(1, np.floor(rate * maskable + 0.5)), maskable)
    np.testing.assert_array_equal(np.bincount(ragged.token_examples, masked.chosen), counts)


def test_seed_and_epoch_give_new_masks_and_examples_have_their_own_epochs():
    ragged = examples(np.full(50, 40), np.arange(50))
    placed, masking = one_a_row(ragged), TokenMasking()
    at = [mask(placed, Draw(0, np.full(50, epoch)), masking).tokens for epoch in (0, 1)]
    mixed = mask(placed, Draw(0, np.arange(50) % 2), masking).tokens.reshape(50, 40)
    np.testing.assert_array_equal(mixed[0::2], at[0].reshape(50, 40)[0::2])
    np.testing.assert_array_equal(mixed[1::2], at[1].reshape(50, 40)[1::2])
    assert (at[0] != at[1]).any() and (at[0] != mask(placed, first_epoch(ragged, 1), masking).tokens).any()


def test_masked_positions_are_gathered_from_packed_rows():
    ragged = examples(np.array([5, 6, 4]), np.array([1, 2, 3]))
    placed = place(ragged, np.array([[1, 0], [-1, 2]]), 12, VOCABULARY)
    chosen = np.array([0, 1, 0, 1, 0] + [0, 0, 1, 1, 0, 0] + [0, 0, 1, 0], bool)
    text = ragged.tokens
    predicted = gather_masked(placed, chosen, 4)
    np.testing.assert_array_equal(predicted["positions_BK"], [[2, 3, 7, 9], [2, 0, 0, 0]])
    np.testing.assert_array_equal(predicted["labels_BK"], [[text[7], text[8], text[1], text[3]], [text[13], 0, 0, 0]])
    np.testing.assert_array_equal(predicted["weights_BK"], [[1, 1, 1, 1], [1, 0, 0, 0]])
    np.testing.assert_array_equal(predicted["dropped_B"], [0, 0])
    assert predicted["weights_BK"].dtype == np.float32
    assert {predicted[name].dtype for name in ("positions_BK", "labels_BK", "dropped_B")} == {np.dtype(np.int32)}

    capped = gather_masked(placed, chosen, 3)
    np.testing.assert_array_equal(capped["positions_BK"], [[2, 3, 7], [2, 0, 0]])
    np.testing.assert_array_equal(capped["dropped_B"], [1, 0])


@given(st.integers(5, 600), st.floats(0.01, 0.99))
@settings(max_examples=200, deadline=None)
def test_a_row_of_one_example_always_fits_the_capacity(seq_len, rate):
    masking = TokenMasking(rate=rate)
    places = masking.capacity(seq_len, 1)
    assert places % 8 == 0 and rate * seq_len <= places < rate * seq_len + 8
    ragged = examples(np.array([seq_len]), np.array([0]))
    placed = one_a_row(ragged)
    assert gather_masked(placed, mask(placed, first_epoch(ragged), masking).chosen, places)["dropped_B"].sum() == 0


@pytest.mark.parametrize(
    "kind, bad",
    [("tokens", {"rate": 0.0}), ("tokens", {"rate": 1.0}), ("tokens", {"mask": 0.8, "random": 0.3})]
    + [("tokens", {"static": -1}), ("ngrams", {"longest": 0})]
    + [("phrases", {"lexicon": ""}), ("phrases", {"lexicon_size": 0})],
)
def test_bad_values_name_their_field(kind, bad):
    with pytest.raises(UserError, match=f"masking.{next(iter(bad))}=.*{next(iter(bad.values()))}"):
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


@given(st.integers(1, 16), st.floats(0.05, 0.5), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_packed_examples_fit_the_capacity(row_examples, rate, seed):
    """Each example rounds its share up by at most one half; with eight tokens the share is at least one."""
    lengths = np.random.default_rng(seed).integers(2 + 10, 40, row_examples)
    ragged = examples(lengths, np.arange(row_examples))
    placed = place(ragged, np.arange(row_examples)[None], int(lengths.sum()), VOCABULARY)
    masking = TokenMasking(rate=rate)
    places = masking.capacity(placed.seq_len, row_examples)
    assert places % 8 == 0
    assert gather_masked(placed, mask(placed, first_epoch(ragged), masking).chosen, places)["dropped_B"].sum() == 0


def test_the_capacity_of_one_example_a_row_is_its_rate_rounded_up_to_eight():
    assert all(TokenMasking().capacity(n, 1) == -(-0.15 * n // 8) * 8 for n in (8, 96, 128, 160, 256, 512))


def test_an_unknown_kind_is_refused():
    assert MASKINGS.class_of(None) is TokenMasking
    assert {kind: MASKINGS.class_of(kind)().kind for kind in KINDS} == {kind: kind for kind in KINDS}
    with pytest.raises(UserError, match="masking.kind='word' is unknown; choose one of tokens, words, ngrams, spans"):
        MASKINGS.class_of("word")
