"""Two WordPiece vocabularies in one tokenizer: which words each splits, and what is refused."""

import itertools
import pickle
import unicodedata

import numpy as np
import pytest

from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.data.tokenizer import base, resizing
from bertjax.data.tokenizer.mixed import MixedTokenizer
from bertjax.interop import tokenizers
from bertjax.runtime.errors import UserError
from tests.data.tokenizer.conftest import KINDS

TEXTS = ["The cat sat on mats, catching rats and bats.", "A dog dogs the catcher; the cat sat."]
LETTERS = " ".join("abcdefghijklmnopqrstuvwxyz") + " ,.; "
OTHERS = LETTERS + "mat at rat bat cat " * 9 + "ing " * 9


def trained(text: str, vocab_size: int, **settings) -> tokenizer.Tokenizer:
    return tokenizer.train([text] * 9, TokenizerConfig(kind="wordpiece", vocab_size=vocab_size, **settings))


@pytest.fixture(scope="module")
def vocabularies():
    """A teacher's and a student's tokenizer; each has pieces that the other lacks."""
    first = trained(LETTERS + " ".join(TEXTS).lower(), 84, lowercase=True)
    return first, trained(OTHERS, 70, lowercase=True)


def pieces(tokens, text):
    return [tokens.piece(i) for i in tokens.encode([text])[0]]


def of_words(tokens, text):
    """The pieces of each word."""
    words = []
    for piece in pieces(tokens, text):
        if piece.startswith("##"):
            words[-1].append(piece)
        else:
            words.append([piece])
    return words


def test_each_word_is_split_by_one_of_both(vocabularies):
    first, second = vocabularies
    mixed = resizing.mix(first, second, 0.5).tokenizer
    text = " ".join(TEXTS * 40)
    ours, theirs, both = (of_words(tokens, text) for tokens in (first, second, mixed))
    assert len(ours) == len(theirs) == len(both)
    differing = [place for place, word in enumerate(ours) if word != theirs[place]]
    assert all(both[place] in (ours[place], theirs[place]) for place in range(len(both)))
    assert np.mean([both[place] == theirs[place] for place in differing]) == pytest.approx(0.5, abs=0.05)
    mixed = resizing.mix(*vocabularies, 0.5).tokenizer
    for text, (ids, spans) in zip(TEXTS, mixed.encode_with_offsets(TEXTS), strict=True):
        assert ids == mixed.encode([text])[0]
        assert [text[a:b].lower() for a, b in spans] == [mixed.piece(i).removeprefix("##") for i in ids]


def test_a_word_that_the_second_vocabulary_lacks_has_pieces_of_the_first():
    first, second = trained("naïve cat " + LETTERS, 66), trained(LETTERS, 62)
    assert pieces(second, "naïve") == ["[UNK]"]
    assert pieces(resizing.mix(first, second, 1.0).tokenizer, "naïve") == pieces(first, "naïve")


def test_it_is_saved_and_sent_to_other_processes(vocabularies, tmp_path):
    mixed = resizing.mix(*vocabularies, 0.5).tokenizer
    mixed.check()
    mixed.save(tmp_path)
    for other in (tokenizer.load(tmp_path), tokenizer.from_model(tmp_path), pickle.loads(pickle.dumps(mixed))):
        assert isinstance(other, MixedTokenizer) and other.fingerprint == mixed.fingerprint
        assert other.encode(TEXTS) == mixed.encode(TEXTS)


def test_what_needs_one_vocabulary_refuses_it(vocabularies, tmp_path):
    mixed = resizing.mix(*vocabularies, 0.5).tokenizer
    with pytest.raises(UserError, match="has a second vocabulary already"):
        resizing.wordpiece(mixed)
    with pytest.raises(UserError, match="two vocabularies .* cannot be trimmed"):
        resizing.trim(mixed, [])
    with pytest.raises(UserError, match="draws one of two vocabularies .* bertjax.load"):
        tokenizers.write(tmp_path, mixed, 32)


# A composed syllable, a unit, stacked accents, a circled number, a ligature, a plane-1 character.
HARD = " \u33a1\uc640  \u1112\u1161\u11ab\u2460\t \uae00 e\u0301\u0302t\u00e9 \ufb01 \U0001f642x \u0130I\u0327"


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


def test_an_accent_belongs_to_its_letter():
    text = "ae\u0301\u0302\uac00\u1112\u1161\u11ab\u0301"
    parts, composed = base.stretches(text)
    assert parts == ["a", "e\u0301\u0302", "\uac00", "\u1112\u1161\u11ab\u0301"]
    assert composed == ["a", "\u00e9\u0302", "\uac00", "\ud55c\u0301"]
    spans = np.array([[0, 1], [1, 2], [2, 3], [4, 6], [6, 6]])
    assert base.whole(spans, parts, composed).tolist() == [[0, 1], [1, 4], [1, 4], [5, 9], [9, 9]]
    assert base.trimmed(np.array([[0, 4], [1, 3], [2, 4]]), " a  ").tolist() == [[1, 2], [1, 2], [4, 4]]
