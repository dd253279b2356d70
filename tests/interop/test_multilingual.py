"""Multilingual BERT: a made-up folder in its files and sizes, converted and back, against the tokenizers library."""

import json
import unicodedata

import pytest
import tokenizers as library

from bertjax.data.tokenizer import from_model
from bertjax.interop import huggingface
from tests.interop import models

# Ids of google-research/bert, multi_cased_L-12_H-768_A-12.
VOCAB_SIZE = 119_547
SYMBOLS = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
# Keys of its config.json that no encoder reads.
UNREAD = {
    "directionality": "bidi",
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
}
TEXTS = [
    "The Café in Zürich isn't \u201copen\u201d; it's CLOSED (since 1999).",
    "Страсбург — Ёлка, ёлка и Йод.",
    "İstanbul'da ışık, IŞIK ve güneş",
    "Tiếng Việt, Tiêng Đồng",
    "Φιλοσοφία και Σίσυφος",
    "北京市\u3001東京都\u3002\U00020000\uf900",
    "カタカナとひらがな\u3001バヒリイ",
    "대한민국의 수도는 서울이다.",
    "ภาษาไทยที่นี่",
    "हिन्दी भाषा, क़लम\u0964",
    "اللغة العَرَبِيّة\u060c \u0661\u0662",
    "עִבְרִית ויידיש",
    "ქართული Հայերեն",
    "emoji \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \uff21\uff22 \u2460 \u33a1 \ufb01",
    "odd\u00a0spaces\u3000and\u200bmarks\u00ad \u0000\ufffd\u0007 tabs\tand\r\nlines",
    "[MASK] ##ing [UNK] #hash @at a" + "b" * 120,
]


def vocabulary() -> dict[str, int]:
    """The symbols, unused pieces, every character of the texts whole and continued, pairs of them, and others."""
    pieces = {"[PAD]": None} | {f"[unused{number}]": None for number in range(1, 100)} | dict.fromkeys(SYMBOLS)
    forms = [form for text in TEXTS for form in (text, unicodedata.normalize("NFD", text))]
    for length in (1, 2, 3):
        for text in forms:
            parts = [text[start : start + length] for start in range(len(text) - length + 1)]
            kept = [part for part in parts if part.isprintable() and not any(map(str.isspace, part))]
            pieces |= {piece: None for part in kept for piece in (part, f"##{part}")}
    assert len(pieces) < VOCAB_SIZE
    pieces |= {f"piece{number}": None for number in range(VOCAB_SIZE - len(pieces))}
    return {piece: number for number, piece in enumerate(pieces)}


@pytest.fixture(scope="module")
def theirs() -> library.Tokenizer:
    """The tokenizer as Hugging Face distributes it: cased, accents kept, no other normalization."""
    return library.BertWordPieceTokenizer(
        vocabulary(), clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=False
    )


@pytest.fixture(scope="module")
def folder(theirs, tmp_path_factory):
    """A checkpoint with these files and very small layers."""
    root = tmp_path_factory.mktemp("mbert")
    vocab = theirs.get_vocab()
    (root / "vocab.txt").write_text("".join(f"{piece}\n" for piece in sorted(vocab, key=vocab.get)), encoding="utf-8")
    export = models.make(models.PARTS["BertForPreTraining"], from_model(root / "vocab.txt"))
    checkpoint = root / "checkpoint"
    huggingface.write(checkpoint, export)
    (checkpoint / "special_tokens_map.json").unlink()
    (checkpoint / "tokenizer_config.json").write_text('{"do_lower_case": false, "model_max_length": 512}')
    theirs.save(str(checkpoint / "tokenizer.json"))
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | UNREAD))
    return checkpoint


def ids_of(tokens: library.Tokenizer, texts) -> list[list[int]]:
    tokens.encode_special_tokens = True  # the text [MASK] is text
    return [tokens.encode(text, add_special_tokens=False).ids for text in texts]


def test_tokens_are_those_of_the_tokenizers_library_both_ways(theirs, folder, tmp_path):
    model, _ = huggingface.read(folder)
    tokens = model.tokenizer
    assert tokens.vocab_size == VOCAB_SIZE
    special = {symbol: tokens._special_id(symbol) for symbol in SYMBOLS}
    assert special == SYMBOLS
    texts = [form for text in TEXTS for form in (text, *(unicodedata.normalize(f, text) for f in ("NFC", "NFD")))]
    expected = ids_of(library.Tokenizer.from_file(str(folder / "tokenizer.json")), texts)
    assert tokens.encode(texts) == expected
    assert len({i for ids in expected for i in ids}) > 150
    known = [i for ids in expected[:-3] for i in ids]
    assert known.count(100) < 0.1 * len(known)
    # Cased, and with accents: nothing is folded.
    assert tokens.encode(["Café"]) != tokens.encode(["café"]) != tokens.encode(["cafe"])
    huggingface.write(tmp_path, model)
    assert ids_of(library.Tokenizer.from_file(str(tmp_path / "tokenizer.json")), texts) == expected
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    names = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
    assert [settings[name] for name in names] == [False, False, True]
