"""Parity with the tokenizers of transformers that are written in Python."""

import json
import unicodedata

import pytest

from bertjax.data import tokenizer

transformers = pytest.importorskip("transformers")

HARD = [
    "Cafe\u0301 na\u00efve \u00c5ngstr\u00f6m \u0130stanbul \u1e9e stra\u00dfe",
    "\uc81c2\uc870(\ubaa9\uc801) \u2460 5\u33a1 \u2163 \u6cd5\u5f8b\u7b2c\u4e00\u689d\uc740",
    unicodedata.normalize("NFD", "\ud55c\uad6d\uc5b4 \ubb38\uc7a5"),
    "tabs\tand\u00a0spaces\u3000and\u200bzero\u200dwidth\x00\x07controls\ufffd",
    "don't $5.00 [brackets] ##hash_and_underscore \u2014 \u201cquotes\u201d \U0001f600 \U00020000",
    "a" * 100 + " " + "a" * 101,
    "",
]


@pytest.fixture(scope="module")
def texts(sentences, korean):
    return [*sentences[:200], *korean[:200], *HARD]


@pytest.mark.parametrize("lowercase", [False, True])
def test_vocab_is_read_as_bert_tokenizer_reads_it(tmp_path, trained, texts, lowercase):
    path = tmp_path / "vocab.txt"
    wordpiece = trained["wordpiece"]
    path.write_text("".join(wordpiece.piece(i) + "\n" for i in range(wordpiece.vocab_size)), encoding="utf-8")
    theirs = transformers.BertTokenizer(str(path), do_lower_case=lowercase)
    expected = [theirs.encode(text, add_special_tokens=False) for text in texts]
    assert tokenizer.from_model(path, lowercase).encode(texts) == expected
    path.write_bytes(path.read_bytes() + b"\n")  # a trailing blank line adds no piece
    assert tokenizer.from_model(path, lowercase).vocab_size == wordpiece.vocab_size


def test_byte_bpe_is_read_as_gpt2_tokenizer_reads_it(tmp_path, trained, texts):
    model = json.loads(trained["byte_bpe"].model)["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    files = str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")
    theirs = transformers.GPT2Tokenizer(
        *files, unk_token="[UNK]", bos_token="[BOS]", eos_token="[EOS]", add_prefix_space=True
    )
    # A sentence has no space before it; transformers would add a second one there, and one to an empty sentence.
    sentences = [text.strip() for text in texts if text.strip()]
    normalized = [unicodedata.normalize("NFC", sentence) for sentence in sentences]
    assert trained["byte_bpe"].encode(sentences) == [theirs.encode(text) for text in normalized]
