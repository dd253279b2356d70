"""A tokenizer.json from elsewhere: round trips, symbols, and errors."""

import json
import pickle
import sys

import pytest
import tokenizers

from bertjax.data import tokenizer
from bertjax.data.inspect.characters import characters_of
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.runtime.errors import UserError

ROBERTA = ("<s>", "<pad>", "</s>", "<unk>")
PARTS = '"pre_tokenizer": null, "decoder": null}'
TEXT = "a <mask> and <s>more</s> of the same"


@pytest.fixture(scope="module")
def roberta(sentences):
    """Like RoBERTa's tokenizer.json: no space before the first word; <mask> is last and strips the space before it."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, show_progress=False, special_tokens=list(ROBERTA), initial_alphabet=alphabet
    )
    made.train_from_iterator(sentences, trainer)
    made.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, special=True)])
    made.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    made.enable_truncation(8)
    made.enable_padding(length=8)
    return made


def written(path, description):
    path.write_text(description if isinstance(description, str) else json.dumps(description), encoding="utf-8")
    return path


def test_roberta_s_symbols_are_ours(tmp_path, roberta):
    tokens = tokenizer.from_model(written(tmp_path / "tokenizer.json", roberta.to_str()))
    assert (tokens.cls_id, tokens.pad_id, tokens.sep_id, tokens.unk_id, tokens.mask_id) == (0, 1, 2, 3, 600)
    assert tokens.special_ids == {0, 1, 2, 3, 600} and tokens.vocab_size == 601 and len(tokens.byte_ids) == 256
    [ids] = tokens.encode(["the same"])
    assert ids == roberta.encode("the same", add_special_tokens=False).ids[: len(ids)]
    assert ids[0] in tokens.continuation_ids  # as published, a text starts like the end of a word
    assert tokens.encode_flat(["the same"])[0][0] not in tokens.continuation_ids  # a sentence of a corpus does not
    assert tokens.decode([0, *ids, 600, 2], keep_special=True) == "<s> the same <mask> </s>"
    assert tokens.decode([0, *ids, 600, 2]) == "the same"


def test_nothing_is_cut_padded_or_parsed(tmp_path, roberta):
    tokens = tokenizer.from_model(written(tmp_path / "tokenizer.json", roberta.to_str()))
    [ids] = tokens.encode([TEXT])
    assert len(ids) > 8 and not tokens.special_ids & set(ids) and tokens.decode(ids) == TEXT
    assert pickle.loads(pickle.dumps(tokens)).encode([TEXT]) == [ids]


def test_a_saved_one_loads_again(tmp_path, roberta):
    tokens = tokenizer.from_model(written(tmp_path / "tokenizer.json", roberta.to_str()))
    (tmp_path / "saved").mkdir()
    tokens.save(tmp_path / "saved")
    assert tokenizer.load(tmp_path / "saved") == tokens


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


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_a_symbol_for_unknown_text_that_is_no_piece_is_refused(tmp_path, trained, kind):
    """The library reads such a file and fails at the first unknown word or byte."""
    description = json.loads(trained[kind].model)
    description["model"]["unk_token"] = "<none>"
    if kind == "byte_bpe":
        del description["model"]["vocab"]["ÿ"]
    with pytest.raises(UserError, match="is not readable .*its unk_token='<none>' is not a piece of its vocabulary"):
        tokenizer.from_model(written(tmp_path / "tokenizer.json", description))


def test_missing_symbols_are_named(tmp_path, roberta):
    description = json.loads(roberta.to_str())
    description["added_tokens"].pop()
    with pytest.raises(UserError, match=r"has no symbols \[MASK\]; add them"):
        tokenizer.from_model(written(tmp_path / "tokenizer.json", description))


def test_one_that_must_read_special_symbols_out_of_texts(tmp_path, trained):
    description = json.loads(trained["wordpiece"].model) | {"pre_tokenizer": {"type": "WhitespaceSplit"}}
    with pytest.raises(UserError, match=r"reads the text '\[PAD\]' as its special symbol; split punctuation"):
        tokenizer.from_model(written(tmp_path / "tokenizer.json", description))


def test_without_a_pre_tokenizer_a_text_is_a_word(tmp_path, trained):
    description = json.loads(trained["wordpiece"].model) | {"pre_tokenizer": None}
    tokens = HuggingFaceTokenizer(json.dumps(description).encode())
    assert tokens.words("of the same") == ["of the same"]
    found = characters_of(["of the same"], tokens)
    assert found.unknown == 1 and found.missing == {}


def test_a_missing_library_is_named(tmp_path, monkeypatch, trained):
    trained["wordpiece"].save(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match="needs the package tokenizers; pip install tokenizers"):
        tokenizer.load(tmp_path).encode(["a"])


def test_english_words_of_new_byte_level_bpe_are_those_of_gpt2(trained, sentences):
    plain, tokens = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True), trained["byte_bpe"]
    for text in [*sentences[:400], " two  spaces", "it's 12.5%, isn't it?"]:
        assert tokens.words(text) == [word for word, _ in plain.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    "text, words",
    [
        ("\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902\u0964", 3),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u062f", 1),
        ("\u2764\ufe0f \U0001f468\u200d\U0001f469\u200d\U0001f467", 2),
    ],
)
def test_words_of_new_byte_level_bpe_keep_their_marks(trained, text, words):
    assert len(trained["byte_bpe"].words(text)) == words
