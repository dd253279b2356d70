"""Two WordPiece vocabularies in one tokenizer: which words each splits, and what is refused."""

import json
import pickle

import numpy as np
import pytest

from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.data.tokenizer import new_pieces, trimming
from bertjax.data.tokenizer.mixed import MixedTokenizer
from bertjax.interop import tokenizers
from bertjax.runtime.errors import UserError

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
    mixed = new_pieces.mix(first, second, 0.5).tokenizer
    text = " ".join(TEXTS * 40)
    ours, theirs, both = (of_words(tokens, text) for tokens in (first, second, mixed))
    assert len(ours) == len(theirs) == len(both)
    differing = [place for place, word in enumerate(ours) if word != theirs[place]]
    assert all(both[place] in (ours[place], theirs[place]) for place in range(len(both)))
    assert np.mean([both[place] == theirs[place] for place in differing]) == pytest.approx(0.5, abs=0.05)
    mixed = new_pieces.mix(*vocabularies, 0.5).tokenizer
    for text, (ids, spans) in zip(TEXTS, mixed.encode_with_offsets(TEXTS), strict=True):
        assert ids == mixed.encode([text])[0]
        assert [text[a:b].lower() for a, b in spans] == [mixed.piece(i).removeprefix("##") for i in ids]


@pytest.mark.parametrize("share, index", [(0.0, 0), (1.0, 1)])
def test_a_share_of_0_or_1_is_one_vocabulary(vocabularies, share, index):
    mixed = new_pieces.mix(*vocabularies, share).tokenizer
    for text in TEXTS:
        assert pieces(mixed, text) == pieces(vocabularies[index], text)


def test_ids_are_those_of_the_first_and_new_pieces_follow(vocabularies):
    first, second = vocabularies
    extension = new_pieces.mix(first, second, 0.5)
    mixed = extension.tokenizer
    assert [mixed.piece(i) for i in range(first.vocab_size)] == [first.piece(i) for i in range(first.vocab_size)]
    assert extension.pieces and mixed.vocab_size == first.vocab_size + len(extension.pieces)
    assert tuple(mixed.piece(first.vocab_size + i) for i in range(len(extension.pieces))) == extension.pieces
    for piece, parts in zip(extension.pieces, extension.parts, strict=True):
        assert "".join(first.piece(i).removeprefix("##") for i in parts) == piece.removeprefix("##")
    ordinary = [i for i in range(second.vocab_size) if i not in second.special_ids]
    assert [mixed.piece(mixed.second_ids[i]) for i in ordinary] == [second.piece(i) for i in ordinary]
    for name in ("pad_id", "unk_id", "sep_id", "cls_id", "mask_id"):
        assert mixed.second_ids[getattr(second, name)] == getattr(mixed, name) == getattr(first, name)
    assert mixed.second_fingerprint == second.fingerprint


def test_a_word_that_the_second_vocabulary_lacks_has_pieces_of_the_first():
    first, second = trained("naïve cat " + LETTERS, 66), trained(LETTERS, 62)
    assert pieces(second, "naïve") == ["[UNK]"]
    assert pieces(new_pieces.mix(first, second, 1.0).tokenizer, "naïve") == pieces(first, "naïve")


def test_it_is_saved_and_sent_to_other_processes(vocabularies, tmp_path):
    mixed = new_pieces.mix(*vocabularies, 0.5).tokenizer
    mixed.check()
    mixed.save(tmp_path)
    for other in (tokenizer.load(tmp_path), tokenizer.from_model(tmp_path), pickle.loads(pickle.dumps(mixed))):
        assert isinstance(other, MixedTokenizer) and other.fingerprint == mixed.fingerprint
        assert other.encode(TEXTS) == mixed.encode(TEXTS)


@pytest.mark.parametrize(
    "change, complaint",
    [({"share": 2.0}, "the share of its second vocabulary is 2.0"), ({"ids": [10**6]}, "are not ids of its pieces")],
)
def test_altered_files_are_refused(vocabularies, change, complaint):
    description = json.loads(new_pieces.mix(*vocabularies, 0.5).tokenizer.model)
    description["mixed"] |= change
    with pytest.raises(ValueError, match=complaint):
        MixedTokenizer(json.dumps(description).encode()).check()


def test_what_needs_one_vocabulary_refuses_it(vocabularies, tmp_path):
    mixed = new_pieces.mix(*vocabularies, 0.5).tokenizer
    with pytest.raises(UserError, match="has a second vocabulary already"):
        new_pieces.wordpiece(mixed)
    with pytest.raises(UserError, match="two vocabularies .* cannot be trimmed"):
        trimming.trim(mixed, [])
    with pytest.raises(UserError, match="draws one of two vocabularies .* bertjax.load"):
        tokenizers.write(tmp_path, mixed, 32)


def test_vocabularies_that_do_not_fit_are_refused(vocabularies):
    first, second = vocabularies
    with pytest.raises(UserError, match="--share=1.5 must be a probability"):
        new_pieces.mix(first, second, 1.5)
    with pytest.raises(UserError, match="--mix reads ÉA as ÉA and the model as ea; .* same data.tokenizer.lowercase"):
        new_pieces.mix(first, trained(OTHERS, 70), 0.5)
