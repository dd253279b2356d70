"""A tokenizer.json from elsewhere: round trips, symbols, and errors."""

import io
import json
import pickle
import re
import sys

import pytest
import sentencepiece
import tokenizers

from bertjax.data import tokenizer
from bertjax.data.inspect.characters import characters_of
from bertjax.data.sources import documents
from bertjax.data.tokenizer import SPECIALS
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.data.tokenizer_config import SENTENCEPIECE_KINDS, TokenizerConfig
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
    [ids] = tokens.encode([TEXT])
    assert len(ids) > 8 and not tokens.special_ids & set(ids) and tokens.decode(ids) == TEXT
    assert pickle.loads(pickle.dumps(tokens)).encode([TEXT]) == [ids]
    description = json.loads(roberta.to_str())
    description["added_tokens"].pop()
    with pytest.raises(UserError, match=r"has no symbols \[MASK\]; add them"):
        tokenizer.from_model(written(tmp_path / "tokenizer.json", description))


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


def existing_model(path, sentences, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, vocab_size=300, minloglevel=3, **options
    )
    path.write_bytes(model.getvalue())
    return path


@pytest.mark.parametrize("kind", SENTENCEPIECE_KINDS)
def test_spelling_of_a_special_symbol_is_ordinary_text_without_bytes(sentences, kind):
    corpus = [*sentences, *(" ".join(SPECIALS) for _ in range(300))]
    tokens = tokenizer.train(corpus, TokenizerConfig(kind=kind, vocab_size=500, byte_fallback=False))
    assert tokens.byte_ids == frozenset()
    for ids in tokens.encode([*SPECIALS, "<0x41>"]):
        assert not (tokens.special_ids - {tokens.unk_id}) & set(ids)


def test_existing_model_keeps_its_ids(tmp_path, sentences):
    options = {"pad_id": 3, "pad_piece": "[PAD]", "control_symbols": ["[MASK]", "[CLS]", "[SEP]"]}
    tokens = tokenizer.from_model(existing_model(tmp_path / "m.model", sentences, **options))
    assert (tokens.unk_id, tokens.pad_id, tokens.mask_id, tokens.cls_id, tokens.sep_id) == (0, 3, 4, 5, 6)
    assert tokens.decode(tokens.encode(["a word"])[0]) == "a word"
    path = existing_model(tmp_path / "m.model", sentences, control_symbols=["[CLS]"], user_defined_symbols=["[MASK]"])
    with pytest.raises(UserError, match=r"has no control symbols \[PAD\], \[SEP\], \[MASK\];"):
        tokenizer.from_model(path)


# What a token is if it is a word by itself, written for the text and not for the pieces.
PUNCTUATION = re.compile(r"(?!['\u2019]\Z)(?:[^\w\s]|_)+")


@pytest.mark.parametrize("corpus, kind", [("embedded:en", "unigram"), ("embedded:ko", "bpe")])
def test_words_start_after_a_space_and_at_punctuation(corpus, kind):
    texts = [line for document in list(documents(corpus, "text"))[::20] for line in document.text.splitlines() if line]
    tokens = tokenizer.train(texts, TokenizerConfig(kind=kind, vocab_size=2400))
    count, punctuation, apostrophes = 0, 0, 0
    for text, (ids, spans) in zip(texts, tokens.encode_with_offsets(texts)):
        after_space = False
        for token, (start, stop) in zip(ids, spans.tolist()):
            is_space, is_punctuation = start == stop, PUNCTUATION.fullmatch(text, start, stop) is not None
            opens = is_space or (not after_space and (start == 0 or text[start - 1].isspace()))
            is_chinese = "\u4e00" <= text[start : start + 1] <= "\u9fff"  # Hanja of the Korean text
            if token not in tokens.byte_ids:  # which cannot be told from the text
                expected = opens or is_punctuation or is_chinese
                assert (token not in tokens.continuation_ids) == expected, (text, start, stop)
                apostrophes += not opens and text[start:stop] in ("'", "\u2019")
            count, punctuation, after_space = count + 1, punctuation + (is_punctuation and not opens), is_space
    # Without this rule they were all parts of the words before them.
    assert 0.03 < punctuation / count < 0.2 and apostrophes


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
    assert pieces(tokens, "the theun " + "un" + "aff" * 40) == ["the", "[UNK]", "[UNK]"]
    vocab.write_text("\n".join([*VOCAB, "the", "a"]), encoding="utf-8")
    tokens = tokenizer.from_model(vocab)
    assert tokens.vocab_size == len(VOCAB) + 2
    assert tokens.encode(["the a"]) == [[len(VOCAB), len(VOCAB) + 1]]


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
