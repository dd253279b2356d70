"""A tokenizer.json from elsewhere: round trips, symbols, and errors."""

import io

import pytest
import sentencepiece
import tokenizers

from bertjax.data import tokenizer
from bertjax.runtime.errors import UserError

PARTS = '"pre_tokenizer": null, "decoder": null}'


@pytest.mark.parametrize(
    "name, content, refused",
    [
        ("tokenizer.json", None, "is not a readable tokenizer.json .*FileNotFoundError"),
        ("tokenizer.json", "", "is not a readable tokenizer.json"),
        ("tokenizer.json", '{"a": 1}', "is not a readable tokenizer.json .*model"),
        ("tokenizer.json", '{"format_version": 1, "normalizer": "nfc"}', "is not a readable tokenizer.json"),
        ("tokenizer.json", '{"model": {"type": "WordLevel"}, ' + PARTS, r"another .*\(WordLevel\); bert"),
        ("tokenizer.json", '{"model": {"type": "Unigram"}, ' + PARTS, "is not readable by the tokenizers"),
        ("tokenizer.json", '{"model": {"type": "BPE"}, ' + PARTS, r"another kind of tokenizer \(BPE\)"),
        ("m.model", None, "m.model"),
        ("m.model", "", "m.model"),
        ("m.model", "no model", "m.model"),
        ("vocab.txt", None, "vocab.txt' is not a readable vocab.txt .*No such file"),
        ("vocab.txt", "\udcff\udcfe", "vocab.txt' is not a readable vocab.txt .*utf-8"),
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n", r"has no symbols \[MASK\]; add them"),
    ],
)
def test_files_that_are_not_tokenizers_are_refused(tmp_path, name, content, refused, capfd):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=refused) as caught:
        tokenizer.from_model(path)
    assert "\n" not in str(caught.value) and capfd.readouterr() == ("", "")


def test_english_words_of_new_byte_level_bpe_are_those_of_gpt2(trained, sentences):
    plain, tokens = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True), trained["byte_bpe"]
    for text in [*sentences[:400], " two  spaces", "it's 12.5%, isn't it?"]:
        assert tokens.words(text) == [word for word, _ in plain.pre_tokenize_str(text)]


def existing_model(path, sentences, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, vocab_size=300, minloglevel=3, **options
    )
    path.write_bytes(model.getvalue())
    return path


def test_existing_model_keeps_its_ids(tmp_path, sentences):
    options = {"pad_id": 3, "pad_piece": "[PAD]", "control_symbols": ["[MASK]", "[CLS]", "[SEP]"]}
    tokens = tokenizer.from_model(existing_model(tmp_path / "m.model", sentences, **options))
    assert (tokens.unk_id, tokens.pad_id, tokens.mask_id, tokens.cls_id, tokens.sep_id) == (0, 3, 4, 5, 6)
    assert tokens.decode(tokens.encode(["a word"])[0]) == "a word"
    path = existing_model(tmp_path / "m.model", sentences, control_symbols=["[CLS]"], user_defined_symbols=["[MASK]"])
    with pytest.raises(UserError, match=r"has no control symbols \[PAD\], \[SEP\], \[MASK\];"):
        tokenizer.from_model(path)


VOCAB = "[PAD] [UNK] [CLS] [SEP] [MASK] the un ##aff ##able \uc81c1 ##\uc870 ( ) cafe caf\u00e9 \u4eba".split()


@pytest.fixture
def vocab(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    return path


def test_lower_case_belongs_to_a_vocab(tmp_path):
    with pytest.raises(UserError, match="lowercase=True has no effect with data.tokenizer.model=.*has its own"):
        tokenizer.from_model(tmp_path / "m.model", lowercase=True)
