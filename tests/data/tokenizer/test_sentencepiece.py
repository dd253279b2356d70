"""Tokenizers: special symbols, normalization, determinism, saving, and what is refused."""

import io
import itertools
import json
import pickle
import unicodedata

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.data.sources import documents
from bertjax.data.tokenizer import SPECIALS
from bertjax.errors import UserError

KINDS = ("unigram", "bpe", "char")


@pytest.fixture(scope="module")
def sentences():
    texts = [document.text for document in itertools.islice(documents("embedded:en", "text"), 12)]
    return [line for text in texts for line in text.splitlines() if line]


@pytest.fixture(scope="module")
def trained(sentences):
    return {kind: tokenizer.train(sentences, TokenizerConfig(kind=kind, vocab_size=800)) for kind in KINDS}


def existing_model(path, sentences, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, vocab_size=300, minloglevel=3, **options
    )
    path.write_bytes(model.getvalue())
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_special_symbols_have_fixed_ids(trained, kind):
    tokens = trained[kind]
    assert [tokens.piece(i) for i in range(7)] == list(SPECIALS)
    assert (tokens.pad_id, tokens.unk_id, tokens.sep_id, tokens.cls_id, tokens.mask_id) == (0, 1, 4, 5, 6)
    assert tokens.special_ids == frozenset(range(7)) and tokens.byte_ids == frozenset(range(7, 263))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_spelling_of_a_special_symbol_is_ordinary_text(sentences, kind, byte_fallback):
    config = TokenizerConfig(kind=kind, vocab_size=800 if byte_fallback else 500, byte_fallback=byte_fallback)
    symbols = [*SPECIALS, "<0x41>"]
    tokens = tokenizer.train([*sentences, *(" ".join(symbols) for _ in range(300))], config)
    for symbol, ids in zip(symbols, tokens.encode(symbols), strict=True):
        assert not (tokens.special_ids - {tokens.unk_id}) & set(ids)
        if byte_fallback:
            assert tokens.decode(ids) == symbol and len(ids) > 1


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")))
def test_byte_fallback_reads_back_any_text(trained, text):
    text = " ".join(word for word in text.split(" ") if word)
    for tokens in trained.values():
        [ids] = tokens.encode([text])
        assert tokens.unk_id not in ids
        assert tokens.decode(ids) == unicodedata.normalize("NFC", text)


def test_decode_keeps_special_symbols_on_request(trained):
    tokens = trained["unigram"]
    [the], [words] = tokens.encode(["the"]), tokens.encode(["same words"])
    ids = [tokens.cls_id, *the, tokens.mask_id, tokens.mask_id, *words, tokens.sep_id]
    assert tokens.decode(ids) == "the same words"
    assert tokens.decode(ids, keep_special=True) == "[CLS] the [MASK] [MASK] same words [SEP]"


def test_normalizers(sentences):
    text = "① ㎡ Ⅳ 가"
    nfc = tokenizer.train([*sentences, text], TokenizerConfig(vocab_size=800))
    nfkc = tokenizer.train([*sentences, text], TokenizerConfig(vocab_size=800, normalizer="nfkc"))
    assert nfc.encode([text]) == nfc.encode([unicodedata.normalize("NFD", text)])
    assert nfc.decode(nfc.encode([text])[0]) == text
    assert nfkc.decode(nfkc.encode([text])[0]) == "1 m2 IV 가"


def test_training_gives_the_same_bytes_again(sentences, trained):
    assert tokenizer.train(sentences, TokenizerConfig(vocab_size=800)).model == trained["unigram"].model


def test_characters_are_what_there_is(sentences, trained):
    characters = {character for sentence in sentences for character in sentence}
    pieces = {trained["char"].piece(i) for i in range(263, trained["char"].vocab_size)}
    assert all(len(piece) == 1 for piece in pieces) and pieces <= characters | {"\u2581"}


def test_save_and_load(tmp_path, trained):
    trained["unigram"].save(tmp_path)
    loaded = tokenizer.load(tmp_path)
    assert loaded == trained["unigram"] and loaded.fingerprint == trained["unigram"].fingerprint
    assert pickle.loads(pickle.dumps(loaded)).encode(["a word"]) == trained["unigram"].encode(["a word"])


def test_load_refuses_what_is_not_as_it_was_saved(tmp_path, trained):
    with pytest.raises(UserError, match="no readable tokenizer"):
        tokenizer.load(tmp_path)
    trained["unigram"].save(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(trained["bpe"].model)
    with pytest.raises(UserError, match="was altered"):
        tokenizer.load(tmp_path)
    record = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(record | {"format_version": 2}))
    with pytest.raises(UserError, match="format 2, not 1; upgrade"):
        tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_too_small_a_corpus_names_the_possible_size(sentences, kind, capfd):
    with pytest.raises(UserError, match=r"vocab_size=8000 is too large.* ask for at most (\d+)") as caught:
        tokenizer.train(sentences[:9], TokenizerConfig(kind=kind))
    possible = int(str(caught.value).rsplit(" ", 1)[1])
    assert tokenizer.train(sentences[:9], TokenizerConfig(kind=kind, vocab_size=possible)).vocab_size == possible
    assert capfd.readouterr() == ("", "")


def test_too_small_a_vocabulary(sentences):
    with pytest.raises(UserError, match=r"vocab_size=264 is too small.* take \d+"):
        tokenizer.train(sentences, TokenizerConfig(vocab_size=264))


def test_existing_model_keeps_its_ids(tmp_path, sentences):
    options = {"pad_id": 3, "pad_piece": "[PAD]", "control_symbols": ["[MASK]", "[CLS]", "[SEP]"]}
    tokens = tokenizer.from_model(existing_model(tmp_path / "m.model", sentences, **options))
    assert (tokens.unk_id, tokens.pad_id, tokens.mask_id, tokens.cls_id, tokens.sep_id) == (0, 3, 4, 5, 6)
    assert tokens.decode(tokens.encode(["a word"])[0]) == "a word"


def test_existing_model_without_special_symbols(tmp_path, sentences):
    path = existing_model(tmp_path / "m.model", sentences, control_symbols=["[CLS]"], user_defined_symbols=["[MASK]"])
    with pytest.raises(UserError, match=r"has no control symbols \[PAD\], \[SEP\], \[MASK\];"):
        tokenizer.from_model(path)


@pytest.mark.parametrize("content", [None, b"", b"no model"])
def test_what_is_no_model(tmp_path, content, capfd):
    path = tmp_path / "m.model"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match="m.model"):
        tokenizer.from_model(path)
    assert capfd.readouterr() == ("", "")
