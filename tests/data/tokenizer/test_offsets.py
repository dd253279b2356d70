"""Offsets of tokens: exact characters of the original text after every normalization."""

import itertools
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.data.tokenizer import alignment
from tests.data.tokenizer.conftest import KINDS

# A composed syllable, a unit, stacked accents, a circled number, a ligature, a plane-1 character.
HARD = " \u33a1\uc640  \u1112\u1161\u11ab\u2460\t \uae00 e\u0301\u0302t\u00e9 \ufb01 \U0001f642x \u0130I\u0327"
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(HARD))


@pytest.fixture(scope="module", params=[*zip(KINDS, itertools.cycle(("nfkc", "nfc")))])
def aligned(request, sentences, korean):
    """(tokenizer, its Unicode normalization form) of every kind."""
    kind, normalizer = request.param
    config = TokenizerConfig(kind=kind, vocab_size=2000, normalizer=normalizer)
    return tokenizer.train([*sentences, *korean, *[HARD] * 20], config), normalizer.upper()


def text_of(tokens, token_id):
    """Return the text of a token; empty for [UNK] and for a part of a character."""
    if token_id in tokens.special_ids | tokens.byte_ids:
        return None
    piece = tokens.piece(token_id).removeprefix("##").replace("\u2581", " ").replace("\u0120", " ").strip()
    return None if "\ufffd" in tokens.decode([token_id]) else piece


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_token_spells_its_characters(aligned, sentences, korean, form):
    tokens, normalizer = aligned
    texts = [unicodedata.normalize(form, text) for text in (*sentences[:99], *korean[:99])]
    encoded = tokens.encode_with_offsets(texts)
    assert [ids for ids, _ in encoded] == tokens.encode(texts)
    compared = 0
    for text, (ids, spans) in zip(texts, encoded, strict=True):
        assert spans.dtype == np.int64 and spans.shape == (len(ids), 2)
        for token_id, (start, stop) in zip(ids, spans.tolist()):
            spelled = text_of(tokens, token_id)
            characters = text[start:stop]
            if spelled is None or unicodedata.normalize("NFKC", characters) != unicodedata.normalize("NFC", characters):
                continue  # parts of one character share it
            assert unicodedata.normalize(normalizer, characters) == spelled
            compared += 1
    assert compared > 2000


def test_a_long_run_of_marks_is_one_part():
    """Normalizing the run again for each of its marks would take minutes."""
    text = "a" + 200_000 * "\u0301" + "b"
    parts, composed = alignment.stretches(text)
    assert parts == [text[:-1], "b"] and "".join(composed) == unicodedata.normalize("NFC", text)


@settings(deadline=None)
@given(text=ANY_TEXT)
def test_spans_of_any_text(trained, text):
    parts, composed = alignment.stretches(text)
    assert "".join(parts) == text and "".join(composed) == unicodedata.normalize("NFC", text)
    for kind, tokens in trained.items():
        [(ids, spans)] = tokens.encode_with_offsets([text])
        assert ids == tokens.encode([text])[0]
        assert np.all(spans >= 0) and np.all(spans <= len(text)) and np.all(np.diff(spans, axis=1) >= 0)
        if kind != "wordpiece":  # which drops control characters
            covered = {place for start, stop in spans for place in range(start, stop)}
            assert all(
                text[place].isspace() or place in covered or text[place] == "\u2581" for place in range(len(text))
            )


def test_an_accent_belongs_to_its_letter():
    text = "ae\u0301\u0302\uac00\u1112\u1161\u11ab\u0301"
    parts, composed = alignment.stretches(text)
    assert parts == ["a", "e\u0301\u0302", "\uac00", "\u1112\u1161\u11ab\u0301"]
    assert composed == ["a", "\u00e9\u0302", "\uac00", "\ud55c\u0301"]
    spans = np.array([[0, 1], [1, 2], [2, 3], [4, 6], [6, 6]])
    assert alignment.whole(spans, parts, composed).tolist() == [[0, 1], [1, 4], [1, 4], [5, 9], [9, 9]]
    assert alignment.trimmed(np.array([[0, 4], [1, 3], [2, 4]]), " a  ").tolist() == [[1, 2], [1, 2], [4, 4]]
