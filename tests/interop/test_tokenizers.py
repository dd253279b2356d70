"""The files for AutoTokenizer give the same ids as the tokenizer that wrote them."""

import itertools
import json
import unicodedata

import pytest
import tokenizers as library

from bertjax.data import tokenizer
from bertjax.data.sources import documents
from bertjax.data.tokenizer.sentencepiece import SentencePieceTokenizer
from bertjax.data.tokenizer_config import HUGGINGFACE_KINDS, SENTENCEPIECE_KINDS, TokenizerConfig
from bertjax.interop import sentencepiece_json, tokenizers
from bertjax.runtime.errors import UserError

KINDS = SENTENCEPIECE_KINDS + HUGGINGFACE_KINDS
CORPORA = ("embedded:en", "embedded:ko")


def lines_of(corpus: str, count: int | None = None) -> list[str]:
    texts = itertools.islice(documents(corpus, "text"), count)
    return [line for document in texts for line in document.text.split("\n")]


@pytest.fixture(scope="module")
def trained():
    """Tokenizers of every kind and normalizer, trained on both languages."""
    sample = lines_of("embedded:en", 12) + lines_of("embedded:ko", 12)
    return {
        (kind, normalizer): tokenizer.train(sample, TokenizerConfig(kind=kind, vocab_size=2400, normalizer=normalizer))
        for kind in KINDS
        for normalizer in ("nfc", "nfkc")
    }


def opened(tokens, folder) -> library.Tokenizer:
    folder.mkdir(exist_ok=True)
    tokenizers.write(folder, tokens, longest=64)
    return library.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_line_of_the_embedded_corpora_has_the_same_ids(trained, tmp_path, kind):
    tokens = trained[kind, "nfc"]
    theirs = opened(tokens, tmp_path / "hf")
    for corpus in CORPORA:
        lines = lines_of(corpus)
        expected = tokens.encode(lines)
        assert [encoding.ids for encoding in theirs.encode_batch_fast(lines, add_special_tokens=False)] == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", SENTENCEPIECE_KINDS)
def test_the_normalization_of_the_model_is_the_same_on_every_character(trained, kind):
    """U+0344 is excluded: NFC decomposes it, and the library handles it differently."""
    characters = map(chr, range(1, 0x30000))
    known = (c for c in characters if unicodedata.category(c) not in ("Cn", "Cs") and c != "\u0344")
    texts = [f"a{c}b {c}" for c in known]
    texts += [unicodedata.normalize("NFD", chr(c)) for c in range(0xAC00, 0xD7A4, 97)]
    tokens = trained[kind, "nfkc"]
    described = sentencepiece_json.describe(tokens)
    encodings = library.Tokenizer.from_str(json.dumps(described)).encode_batch_fast(texts, add_special_tokens=False)
    assert [encoding.ids for encoding in encodings] == tokens.encode(texts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalizer", ["nfc", "nfkc"])
def test_a_round_trip_restores_the_tokenizer(trained, tmp_path, kind, normalizer):
    tokens = trained[kind, normalizer]
    tokenizers.write(tmp_path, tokens, longest=64)
    restored = tokenizers.read(tmp_path)[0]
    texts = ["the same", "e\u0301 \u2460 \uac00", "[MASK]"]
    assert restored.encode(texts) == tokens.encode(texts)
    inside = kind in SENTENCEPIECE_KINDS and normalizer == "nfkc"  # the model brings it along
    assert restored == (SentencePieceTokenizer(tokens.model, "model") if inside else tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_auto_tokenizer_gives_the_same_ids(trained, tmp_path, kind):
    transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")
    tokens, texts = trained[kind, "nfc"], [text for corpus in CORPORA for text in lines_of(corpus, 5) if text]
    tokenizers.write(tmp_path, tokens, longest=64)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.model_max_length, theirs.mask_token_id, theirs.pad_token_id) == (64, tokens.mask_id, tokens.pad_id)
    assert len(theirs) == theirs.vocab_size == tokens.vocab_size
    assert theirs(texts)["input_ids"] == [[tokens.cls_id, *ids, tokens.sep_id] for ids in tokens.encode(texts)]
    assert set(theirs("a", "b")) == {"input_ids", "token_type_ids", "attention_mask"}


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_are_between_cls_and_sep(trained, tmp_path, kind):
    tokens = trained[kind, "nfc"]
    theirs = opened(tokens, tmp_path / "hf")
    [first], [second] = tokens.encode(["the same"]), tokens.encode(["other words"])
    pair = theirs.encode("the same", "other words")
    assert pair.ids == [tokens.cls_id, *first, tokens.sep_id, *second, tokens.sep_id]
    assert pair.type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert theirs.encode("the [MASK] same").ids == [
        tokens.cls_id,
        *tokens.encode(["the"])[0],
        tokens.mask_id,
        *tokens.encode(["same"])[0],
        tokens.sep_id,
    ]
    text = "the same, other words"
    assert theirs.decode(theirs.encode(text).ids).replace(" ,", ",").strip() == text


def test_settings_that_tokenizer_json_cannot_express_are_refused(trained):
    tokens = trained["unigram", "nfc"]
    model = type(tokens.description).FromString(tokens.model)
    model.normalizer_spec.add_dummy_prefix = False
    with pytest.raises(UserError, match="add_dummy_prefix=False, which tokenizer.json cannot express"):
        sentencepiece_json.describe(SentencePieceTokenizer(model.SerializeToString(), "nfc"))
    model = type(tokens.description).FromString(tokens.model)
    model.pieces[300].type = 4
    with pytest.raises(UserError, match="user-defined or unused pieces"):
        sentencepiece_json.describe(SentencePieceTokenizer(model.SerializeToString(), "nfc"))


def test_a_vocab_txt_is_read_with_its_settings(trained, tmp_path):
    wordpiece = trained["wordpiece", "nfc"]
    (tmp_path / "vocab.txt").write_text("".join(wordpiece.piece(i) + "\n" for i in range(wordpiece.vocab_size)))
    read = tokenizers.read(tmp_path)[0]
    assert read.encode(["THE"]) == wordpiece.encode(["the"])
    lines = (tmp_path / "vocab.txt").read_text()
    (tmp_path / "vocab.txt").write_text("\ufeff" + lines.replace("\n", " \n"), encoding="utf-8")
    assert tokenizers.read(tmp_path)[0] == read, "as an editor or a table may save it"
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert tokenizers.read(tmp_path)[0].encode(["THE"]) == wordpiece.encode(["THE"])
    (tmp_path / "tokenizer_config.json").write_text('{"strip_accents": false}')
    lower, kept = tokenizers.read(tmp_path)[0].encode(["TH\u00c9", "th\u00e9"])
    assert lower == kept != wordpiece.encode(["the"])[0]
    (tmp_path / "tokenizer_config.json").write_text('{"tokenize_chinese_chars": false}')
    assert tokenizers.read(tmp_path)[0].words("\u5b57\u5b57") == ["\u5b57\u5b57"]


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path):
    with pytest.raises(UserError, match="holds no tokenizer"):
        tokenizers.read(tmp_path)
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(UserError, match="holds a list, not settings by name"):
        tokenizers.read(tmp_path)
