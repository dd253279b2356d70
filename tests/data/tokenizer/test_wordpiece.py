"""WordPiece: how words are split, vocab.txt files from elsewhere, and errors."""

import pytest

from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.runtime.errors import UserError

VOCAB = "[PAD] [UNK] [CLS] [SEP] [MASK] the un ##aff ##able \uc81c1 ##\uc870 ( ) cafe caf\u00e9 \u4eba".split()


SIZE = {"vocab_size": 800}


@pytest.fixture
def vocab(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    return path


def pieces(tokens, text):
    [ids] = tokens.encode([text])
    return [tokens.piece(i) for i in ids]


def test_vocab_keeps_its_ids(vocab):
    tokens = tokenizer.from_model(vocab)
    assert [tokens.piece(i) for i in range(tokens.vocab_size)] == VOCAB
    assert (tokens.pad_id, tokens.unk_id, tokens.cls_id, tokens.sep_id, tokens.mask_id) == (0, 1, 2, 3, 4)
    assert tokens.special_ids == frozenset(range(5))
    assert tokens.continuation_ids == {VOCAB.index(piece) for piece in ("##aff", "##able", "##\uc870")}
    assert tokens.decode(tokens.encode(["the unaffable"])[0]) == "the unaffable"


def test_a_repeated_piece_shifts_no_id(vocab):
    vocab.write_text("\n".join([*VOCAB, "the", "a"]), encoding="utf-8")
    tokens = tokenizer.from_model(vocab)
    assert tokens.vocab_size == len(VOCAB) + 2
    assert tokens.encode(["the a"]) == [[len(VOCAB), len(VOCAB) + 1]]


def test_ideographs_are_separated_and_hangul_is_not(vocab):
    tokens = tokenizer.from_model(vocab)
    assert pieces(tokens, "\uc81c1\uc870(\u4eba\u4eba)") == ["\uc81c1", "##\uc870", "(", "\u4eba", "\u4eba", ")"]


def test_ideographs_take_one_piece_each():
    """Spaces are put around them, so a piece inside a word would never be used."""
    text = ["".join(chr(0x4E00 + (7 * i * i + j) % 60) for j in range(20)) + " abc가나" for i in range(40)]
    tokens = tokenizer.train(text, TokenizerConfig(kind="wordpiece", vocab_size=80))
    pieces = {tokens.piece(i) for i in range(tokens.vocab_size)}
    assert {"\u4e00", "##b", "##나"} <= pieces and not {f"##{chr(0x4E00 + i)}" for i in range(60)} & pieces
    assert not any(tokens.unk_id in ids for ids in tokens.encode(text))


@pytest.mark.parametrize("lowercase, expected", [(False, ["[UNK]", "caf\u00e9"]), (True, ["the", "cafe"])])
def test_lower_case_and_accents(vocab, lowercase, expected):
    tokens = tokenizer.from_model(vocab, lowercase)
    assert pieces(tokens, "The cafe\u0301") == expected
    assert tokens.fingerprint != tokenizer.from_model(vocab, not lowercase).fingerprint


def test_a_word_that_does_not_fit_is_unknown(vocab):
    tokens = tokenizer.from_model(vocab)
    assert pieces(tokens, "the theun " + "un" + "aff" * 40) == ["the", "[UNK]", "[UNK]"]


def test_trained_lower_case_leaves_hangul_whole(korean):
    cased, uncased = (
        tokenizer.train([*korean, "The THE the"] * 2, TokenizerConfig(kind="wordpiece", vocab_size=1200, lowercase=low))
        for low in (False, True)
    )
    assert uncased.encode(["THE The"]) == uncased.encode(["the the"])
    assert cased.encode(["THE The"]) != cased.encode(["the the"])
    text = " ".join(word for word in " ".join(korean).split()[:100] if word.isalpha())
    assert any("\uac00" <= character <= "\ud7a3" for character in text)
    assert uncased.decode(uncased.encode([text])[0]) == text.lower()


def test_covered_characters_spell_any_word(sentences):
    most = tokenizer.train([*sentences, "\u6f22"], TokenizerConfig(kind="wordpiece", character_coverage=0.999, **SIZE))
    assert pieces(most, "\u6f22") == ["[UNK]"], "coverage leaves rare characters out"
    tokens = tokenizer.train(sentences, TokenizerConfig(kind="wordpiece", character_coverage=1.0, **SIZE))
    letters = {character for sentence in sentences for character in sentence if character.isalpha()}
    for word in ("".join(sorted(letters)), "".join(sorted(letters, reverse=True))):
        for part in (word[i : i + 50] for i in range(0, len(word), 50)):
            [ids] = tokens.encode([part])
            assert tokens.unk_id not in ids and tokens.decode(ids) == part


def test_lower_case_belongs_to_a_vocab(tmp_path):
    with pytest.raises(UserError, match="lowercase=True has no effect with data.tokenizer.model=.*has its own"):
        tokenizer.from_model(tmp_path / "m.model", lowercase=True)
