"""Properties of every kind of tokenizer: ids, spellings, words, training, and errors."""

import copy
import dataclasses
import pickle
import random

import numpy as np
import pytest
import tokenizers

from bertjax.data import tokenizer
from bertjax.data.examples import Vocabulary
from bertjax.data.inspect.characters import characters_of
from bertjax.data.tokenizer import SPECIALS
from bertjax.data.tokenizer_config import HUGGINGFACE_KINDS, SENTENCEPIECE_KINDS, TokenizerConfig, kept_characters
from bertjax.runtime.errors import UserError

KINDS = SENTENCEPIECE_KINDS + HUGGINGFACE_KINDS


def pieces(tokens, text):
    [ids] = tokens.encode([text])
    return [tokens.piece(i) for i in ids]


@pytest.mark.parametrize("kind", KINDS)
def test_symbols_words_and_rows_of_every_kind(trained, kind):
    tokens = trained[kind]
    assert [tokens.piece(i) for i in range(7)] == list(SPECIALS)
    assert (tokens.pad_id, tokens.unk_id, tokens.sep_id, tokens.cls_id, tokens.mask_id) == (0, 1, 4, 5, 6)
    assert tokens.special_ids == frozenset(range(7))
    assert tokens.byte_ids == (frozenset() if kind == "wordpiece" else frozenset(range(7, 263)))
    assert tokens.vocab_size == (800 if kind != "char" else tokens.vocab_size)
    assert len({tokens.piece(i) for i in range(tokens.vocab_size)}) == tokens.vocab_size
    [the], [words] = tokens.encode(["the"]), tokens.encode(["same words"])
    ids = np.array([tokens.cls_id, *the, tokens.mask_id, tokens.mask_id, *words, tokens.sep_id], np.int32)
    assert tokens.decode(ids) == "the same words"
    assert tokens.decode(ids, keep_special=True) == "[CLS] the [MASK] [MASK] same words [SEP]"
    words = ["the", "extraordinarily", "same", "misunderstanding"]
    [ids] = tokens.encode([" ".join(words)])
    starts = [i for i, token_id in enumerate(ids) if token_id not in tokens.continuation_ids]
    ends = [*starts[1:], len(ids)]
    assert [tokens.decode(ids[start:end]) for start, end in zip(starts, ends, strict=True)] == words
    assert not tokens.continuation_ids & tokens.special_ids
    vocabulary = Vocabulary.of(tokens)
    assert vocabulary.continues_word.shape == (tokens.vocab_size,) and vocabulary.continues_word.dtype == bool
    assert set(np.flatnonzero(vocabulary.continues_word)) == tokens.continuation_ids


@pytest.mark.parametrize("kind", KINDS)
def test_flat_ids_and_rows_are_those_of_each_sentence(trained, kind):
    tokens = trained[kind]
    for texts in ([], [""], ["the same", "", "\u1112\u1161\u11ab words", "e\u0301 "]):
        ids, lengths = tokens.encode_flat(texts)
        assert (ids.dtype, lengths.dtype) == (np.int32, np.int64)
        assert [part.tolist() for part in np.split(ids, np.cumsum(lengths))[:-1]] == tokens.encode(texts)
    ids, longer = tokens.encode(["the same", "the same words " * 9])
    rows, examples_BT = tokens.rows(["the same", "the same words " * 9], seq_len=20)
    assert rows.dtype == examples_BT.dtype == np.int32
    assert examples_BT.tolist() == [[1] * (len(ids) + 2) + [0] * (18 - len(ids)), [1] * 20]
    assert rows[0].tolist() == [5, *ids, 4] + [0] * (18 - len(ids))
    assert rows[1].tolist() == [5, *longer[:18], 4]


@pytest.mark.parametrize(
    "kind, text, continuing",
    [
        ("char", "it is", {"\u2581": False, "i": True, "t": True, "s": True}),
        ("char", "it-is, so", {"\u2581": False, **dict.fromkeys("itso", True), "-": False, ",": False}),
        ("char", "\uac00", {"\u2581": False, "<0xEA>": True, "<0xB0>": True, "<0x80>": True}),
        ("wordpiece", "is, therefore", {"is": False, ",": False, "there": False, "##fore": True}),
        ("byte_bpe", "it, is", {"\u0120it": False, ",": True, "\u0120is": False}),
    ],
)
def test_continuations_as_literals(trained, kind, text, continuing):
    tokens = trained[kind]
    assert set(pieces(tokens, text)) == set(continuing)
    [ids] = tokens.encode([text])
    assert {tokens.piece(i): i in tokens.continuation_ids for i in ids} == continuing


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece", "byte_bpe"])
def test_too_small_a_corpus_names_the_possible_size(sentences, kind, capfd):
    with pytest.raises(UserError, match=r"vocab_size=8000 is too large.* ask for at most (\d+)") as caught:
        tokenizer.train(sentences[:9], TokenizerConfig(kind=kind))
    possible = int(str(caught.value).rsplit(" ", 1)[1])
    assert tokenizer.train(sentences[:9], TokenizerConfig(kind=kind, vocab_size=possible)).vocab_size == possible
    assert capfd.readouterr() == ("", "")
    with pytest.raises(UserError, match=r"vocab_size=50 is too small.* take \d+"):
        tokenizer.train(sentences, TokenizerConfig(kind=kind, vocab_size=50))


@pytest.mark.parametrize(
    "kind, in_file", [("unigram", False), ("bpe", True), ("char", False), ("wordpiece", True), ("wordpiece", False)]
)
def test_kept_characters_are_pieces(kind, in_file, tmp_path):
    """甲 occurs once in many words and 乙 never: without `keep` neither is a piece."""
    draw = random.Random(0)
    words = ["".join(draw.choices("가나다라마바사아자차카타파하", k=draw.randint(1, 3))) for _ in range(60)]
    sentences = [" ".join(draw.choices(words, k=12)) for _ in range(300)] + ["甲 가나다"]
    vocab_size = 90 if kind == "wordpiece" else 320
    config = TokenizerConfig(kind=kind, vocab_size=vocab_size, character_coverage=0.999)
    (tmp_path / "kept.txt").write_text("甲\n乙\n", encoding="utf-8-sig")  # with a byte order mark
    keep = {"keep_file": str(tmp_path / "kept.txt")} if in_file else {"keep": "乙甲"}

    def missing(config):
        return characters_of(["甲乙 가"], tokenizer.train(sentences, config)).missing

    assert set(missing(config)) == {"甲", "乙"}
    assert missing(dataclasses.replace(config, **keep)) == {}
    assert kept_characters(dataclasses.replace(config, **keep)) == "乙甲"


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_loaded_by_all(tmp_path, trained, kind):
    trained[kind].save(tmp_path)
    loaded = tokenizer.load(tmp_path)
    assert loaded == trained[kind] and loaded.fingerprint == trained[kind].fingerprint
    assert tokenizer.from_model(tmp_path) == loaded
    text = "a word, and \u00e9\uac00 [MASK]"
    for copied in (loaded, pickle.loads(pickle.dumps(trained[kind])), copy.deepcopy(trained[kind])):
        assert copied.encode([text]) == trained[kind].encode([text])
    # The library opens it, and treats the special symbols as special.
    model = "tokenizer.json" if kind in HUGGINGFACE_KINDS else "tokenizer.model"
    assert {path.name for path in tmp_path.iterdir()} == {model, "bertjax_tokenizer.json"}
    if kind in HUGGINGFACE_KINDS:
        opened = tokenizers.Tokenizer.from_file(str(tmp_path / model))
        text = "The same words, again."
        assert opened.encode(text).ids == trained[kind].encode([text])[0]
        assert opened.encode("[MASK]").ids == [trained[kind].mask_id]
        assert tokenizer.from_model(tmp_path / model) == trained[kind]
