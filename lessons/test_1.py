"""Grade lesson 1: `pytest lessons/test_1.py`."""

import numpy as np

PIECES = {"un", "una", "##able", "##ble", "##a", "##ab", "a", "able", "b", "##l", "##e"}


def test_the_longest_piece_comes_first(wordpiece):
    cut = wordpiece("unable", PIECES)
    assert cut != ["un", "##able"], "`una` is longer than `un`: take the longest piece at each place, do not look ahead"
    assert cut == ["una", "##ble"], f"unable became {cut} and not ['una', '##ble']"
    assert wordpiece("able", PIECES) == ["able"], "a whole word that is a piece stays whole"


def test_pieces_inside_a_word_have_the_mark(wordpiece):
    cut = wordpiece("aable", PIECES)
    assert cut == ["a", "##able"], f"aable became {cut}: after the first piece, look for pieces with ## in front"


def test_a_word_that_does_not_fit_is_unknown(wordpiece):
    for word in ("unx", "xa", "bb", "unab", "u\u00f1"):
        cut = wordpiece(word, PIECES)
        assert cut == ["[UNK]"], f"{word} became {cut}: if one place has no piece, the whole word is one [UNK]"


MASK, VOCAB, COUNT = 4, 1000, 40_000


def masked(mask_tokens):
    """Return (tokens, which are special, what is shown, which are chosen) of 40,000 tokens."""
    tokens_T = np.random.default_rng(1).integers(7, VOCAB, COUNT)
    is_special_T = np.zeros(COUNT, bool)
    tokens_T[::20], is_special_T[::20] = 5, True
    before_T = tokens_T.copy()
    shown_T, is_chosen_T = mask_tokens(tokens_T, is_special_T, MASK, VOCAB, np.random.default_rng(2))
    assert (tokens_T == before_T).all(), "tokens_T was changed: the labels are lost. Work on a copy"
    assert np.asarray(is_chosen_T).dtype == bool, "the second array says True or False for each token, bool [T]"
    assert np.shape(shown_T) == np.shape(is_chosen_T) == (COUNT,), "return two arrays of shape [T]"
    return tokens_T, is_special_T, np.asarray(shown_T), np.asarray(is_chosen_T)


def test_special_symbols_are_never_chosen(mask_tokens):
    tokens_T, is_special_T, shown_T, is_chosen_T = masked(mask_tokens)
    assert not is_chosen_T[is_special_T].any(), "special symbols are chosen: exclude is_special_T"
    assert (shown_T == tokens_T)[~is_chosen_T].all(), "a token that is not chosen must be shown as it is"


def test_fifteen_percent_are_chosen(mask_tokens):
    _, is_special_T, _, is_chosen_T = masked(mask_tokens)
    share = is_chosen_T[~is_special_T].mean()
    assert abs(share - 0.15) < 0.01, f"{share:.1%} of the ordinary tokens are chosen, not 15%"


def test_chosen_tokens_have_three_fates(mask_tokens):
    tokens_T, _, shown_T, is_chosen_T = masked(mask_tokens)
    shown, labels = shown_T[is_chosen_T], tokens_T[is_chosen_T]
    is_mask, is_same = shown == MASK, shown == labels
    shares = is_mask.mean(), (~is_mask & ~is_same).mean(), is_same.mean()
    text = ", ".join(f"{name} {share:.1%}" for name, share in zip(("[MASK]", "random", "unchanged"), shares))
    assert shares[0] < 0.99, f"{text}: always [MASK]; a tenth stays as it is, and a tenth is random"
    assert shares[1] > 0.05, f"{text}: too few are random. A second draw after `< 0.8` sees a fifth of the tokens only"
    assert np.allclose(shares, (0.8, 0.1, 0.1), atol=0.02), f"{text}; not 80%, 10% and 10%"
    random = shown[~is_mask & ~is_same]
    assert len(set(random)) > 0.2 * len(random), "all random tokens are alike: draw one for each place"
